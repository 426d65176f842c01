import { ChoiceText, type TextTokenizer } from "./choice-text.ts";
import type { Sampling, ServedModel } from "./fields.ts";
import type { Scheduler, SequenceOutput } from "./scheduler.ts";

/** What a request asks the scheduler for, whatever its route. */
export interface ChoicesRequest {
  id: string;
  prompts: Int32Array[];
  sampling: Omit<Sampling, "seed"> & { seed: number };
  /** One a prompt. */
  maxTokens: number[];
  cacheSalt: string | null;
  /** Null where neither text nor stop strings are wanted. */
  tokenizer: TextTokenizer | null;
  /** Texts of single tokens are wanted, for log-probabilities. */
  tokenTexts: boolean;
}

/** One sequence of an answer. */
export interface Choice {
  /** Counts over the prompts, `n` of each. */
  index: number;
  prompt: Int32Array;
  output: SequenceOutput;
  text: ChoiceText | null;
}

/** Tokens `from..to` of a choice are new. With the last `finish` is set; it comes once. */
export type OnDelta = (choice: Choice, from: number, to: number, finish: SequenceOutput["finish"]) => void;

/** Starts `n` sequences of each prompt. With `onDelta`, each one's tokens are told in order as they come. */
export function startChoices(
  scheduler: Scheduler,
  request: ChoicesRequest,
  onDelta?: OnDelta,
): { done: Promise<Choice[]>; abort: () => void } {
  const { prompts, sampling } = request;
  const started = Array.from({ length: prompts.length * sampling.n }, (_, index) =>
    startChoice(scheduler, request, index, onDelta),
  );
  const abort = () => {
    for (const one of started) one.abort();
  };
  if (started.length === 1) return { done: started[0]!.done.then((choice) => [choice]), abort };
  const done = Promise.all(started.map((one) => one.done));
  // One that fails ends the others.
  done.catch(abort);
  return { done, abort };
}

function startChoice(scheduler: Scheduler, request: ChoicesRequest, index: number, onDelta?: OnDelta) {
  const { sampling, tokenizer, tokenTexts, cacheSalt } = request;
  const at = Math.floor(index / sampling.n);
  const prompt = request.prompts[at]!;
  const text = tokenizer && new ChoiceText(tokenizer, { ...sampling, tokenTexts });
  const follower = text || onDelta ? new Follower({ index, prompt, text }, onDelta) : null;
  const { output, abort } = scheduler.submit(request.id, {
    prompt,
    temperature: sampling.temperature,
    topP: sampling.topP,
    topK: sampling.topK,
    maxTokens: request.maxTokens[at]!,
    stopTokenIds: sampling.stopTokenIds,
    seed: (sampling.seed + index) % Number.MAX_SAFE_INTEGER,
    cacheSalt,
    promptLogprobs: sampling.promptLogprobs,
    stops: sampling.stop.length > 0 ? (current) => follower!.stops(current) : undefined,
    onToken: onDelta && ((current) => follower!.tell(current)),
  });
  const done = output.then((whole) => follower?.end(whole) ?? { index, prompt, output: whole, text });
  return { done, abort };
}

/** Brings a choice's text up to its tokens, one call after the other, and tells what is new. */
class Follower {
  private readonly choice: Omit<Choice, "output">;
  private readonly onDelta?: OnDelta;
  private read = 0;
  private told = 0;
  private toldEnd = false;
  private tail: Promise<void> = Promise.resolve();

  constructor(choice: Omit<Choice, "output">, onDelta?: OnDelta) {
    this.choice = choice;
    this.onDelta = onDelta;
  }

  async stops(output: SequenceOutput): Promise<boolean> {
    await this.follow(output);
    return this.choice.text!.stopString !== null;
  }

  tell(output: SequenceOutput): void {
    const { finish } = output;
    const to = output.tokenIds.length;
    if (this.toldEnd) return;
    this.toldEnd = finish !== null;
    this.follow(output, () => {
      this.onDelta!({ ...this.choice, output }, this.told, to, finish);
      this.told = to;
    });
  }

  async end(output: SequenceOutput): Promise<Choice> {
    if (this.onDelta) this.tell(output);
    await this.follow(output);
    return { ...this.choice, output };
  }

  private follow({ tokenIds }: SequenceOutput, after?: () => void): Promise<void> {
    const { text } = this.choice;
    if (text === null && !after) return this.tail;
    const { length } = tokenIds;
    this.tail = this.tail.then(async () => {
      for (; text !== null && this.read < length; this.read++) await text.push(tokenIds[this.read]!);
      after?.();
    });
    // Whoever waits for the end gets what went wrong.
    this.tail.catch(() => {});
    return this.tail;
  }
}

/** Why a choice stopped: the string, or the token, that the request brought; null for the model's own end. */
export function stopReasonOf(
  { output, text }: Choice,
  { ownStops }: ChoicesRequest["sampling"],
  { eosTokenIds }: ServedModel,
): string | number | null {
  if (output.finish !== "stop") return null;
  if (text !== null && text.stopString !== null) return text.stopString;
  const last = output.tokenIds.at(-1)!;
  return ownStops.has(last) && !eosTokenIds.includes(last) ? last : null;
}
