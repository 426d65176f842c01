import type { ServerContext } from "./answers.ts";
import { ChoiceText, type TextTokenizer } from "./choice-text.ts";
import type { Sampling } from "./fields.ts";
import type { SequenceOutput } from "./scheduler.ts";

export interface ChoicesRequest {
  id: string;
  prompt: Int32Array;
  sampling: Sampling;
  cacheSalt: string | null;
  tokenizer: TextTokenizer | null;
  tokenTexts: boolean;
  stream: boolean;
}

export interface Choice {
  index: number;
  output: SequenceOutput;
  text: ChoiceText | null;
}

/** `from..to` are new. The last comes once, with `finish`. */
export type OnDelta<T = void> = (choice: Choice, from: number, to: number, finish: SequenceOutput["finish"]) => T;

/** Starts `n` sequences, whose tokens `onDelta` is told in order. */
export function startChoices(
  context: ServerContext,
  request: ChoicesRequest,
  onDelta?: OnDelta,
): { done: Promise<Choice[]>; abort: () => void } {
  const seed = request.sampling.seed ?? context.nextSeed();
  const started = Array.from({ length: request.sampling.n }, (_, index) => {
    return startChoice(context, request, (seed + index) % Number.MAX_SAFE_INTEGER, index, onDelta);
  });
  const abort = () => {
    for (const one of started) one.abort();
  };
  const done = Promise.all(started.map((one) => one.done));
  done.catch(abort);
  return { done, abort };
}

function startChoice(
  { scheduler, model }: ServerContext,
  request: ChoicesRequest,
  seed: number,
  index: number,
  onDelta?: OnDelta,
) {
  const { sampling, tokenizer, tokenTexts, prompt, cacheSalt } = request;
  const room = model.maxModelLen - prompt.length;
  const text = tokenizer && new ChoiceText(tokenizer, { ...sampling, tokenTexts });
  let read = 0;
  let told = 0;
  let tail = Promise.resolve();
  /** Brings the text up to the tokens, call by call, and tells what is new. */
  const follow = (output: SequenceOutput): Promise<void> => {
    const { finish, tokenIds } = output;
    const { length } = tokenIds;
    tail = tail.then(async () => {
      for (; text && read < length; read++) await text.push(tokenIds[read]!);
      if (finish !== null || told < length) onDelta?.({ index, output, text }, told, length, finish);
      told = length;
    });
    tail.catch(() => {});
    return tail;
  };
  const stops = async (output: SequenceOutput) => {
    await follow(output);
    return text!.stopString !== null;
  };
  const { output, abort } = scheduler.submit(request.id, {
    ...sampling,
    prompt,
    maxTokens: Math.min(sampling.maxTokens ?? room, room),
    seed,
    cacheSalt,
    stops: sampling.stop.length > 0 ? stops : undefined,
    onToken:
      onDelta &&
      ((current) => {
        if (current.finish === null) follow(current);
      }),
  });
  const done = output.then(async (whole): Promise<Choice> => {
    if (text || onDelta) await follow(whole);
    return { index, output: whole, text };
  });
  return { done, abort };
}

/** The string or token that the request brought; null for the model's own end. */
export function stopReasonOf({ output, text }: Choice, { stopReasons }: Sampling): string | number | null {
  if (output.finish !== "stop") return null;
  const last = output.tokenIds.at(-1)!;
  return text?.stopString ?? (stopReasons.has(last) ? last : null);
}
