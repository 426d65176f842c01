import { Mask, type Message } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import type { Tokenizer } from "./tokenizer.ts";

export interface Demonstration {
  tokens: Int32Array;
  /** 1 on assistants' text and ends of turn. */
  mask: Uint8Array;
}

/**
 * A conversation to imitate. Assistant turns are cut where sampling would begin and end and tokenized apart, so that
 * the ids are those of a rollout.
 */
export async function encodeDemonstration(tokenizer: Tokenizer, messages: Message[]): Promise<Demonstration> {
  const pieces: { text: string; trained: boolean }[] = [];
  let done = "";
  const take = (until: string, trained: boolean) => {
    if (!until.startsWith(done)) {
      throw new RunnerError("the chat template rewrites earlier turns, so this conversation is not one training row", {
        fix: "split the conversation at its assistant turns",
      });
    }
    pieces.push({ text: until.slice(done.length), trained });
    done = until;
  };
  const closers = tokenizer.stopTexts;
  for (const [at, { role }] of messages.entries()) {
    if (role !== "assistant") continue;
    take(tokenizer.renderChat(messages.slice(0, at), { addGenerationPrompt: true }), false);
    const whole = tokenizer.renderChat(messages.slice(0, at + 1));
    const ends = closers.map((closer) => whole.lastIndexOf(closer) + closer.length);
    const end = Math.max(...ends.filter((_, i) => whole.lastIndexOf(closers[i]!) >= done.length));
    take(Number.isFinite(end) ? whole.slice(0, end) : whole, true);
  }
  if (pieces.length === 0) throw new RunnerError("this conversation has no assistant turn to learn from");
  return join(tokenizer, pieces);
}

async function join(tokenizer: Tokenizer, pieces: { text: string; trained: boolean }[]): Promise<Demonstration> {
  const ids = await Promise.all(
    pieces.map(({ text }, index) => (index === 0 ? tokenizer.encodeRendered(text) : tokenizer.encode(text))),
  );
  return {
    tokens: Int32Array.from(ids.flat()),
    mask: Uint8Array.from(ids.flatMap((part, i) => part.map(() => (pieces[i]!.trained ? Mask.trained : Mask.context)))),
  };
}
