import { Mask, type Message } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import type { Tokenizer } from "./tokenizer.ts";

/**
 * A conversation to imitate. Assistant turns are cut where sampling would begin and end and tokenized apart, so that
 * the ids are those of a rollout. `mask` is 1 on assistants' text and ends of turn.
 */
export async function encodeDemonstration(tokenizer: Tokenizer, messages: Message[]) {
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
  for (const [at, { role }] of messages.entries()) {
    if (role !== "assistant") continue;
    take(tokenizer.renderChat(messages.slice(0, at), { addGenerationPrompt: true }), false);
    const whole = tokenizer.renderChat(messages.slice(0, at + 1));
    const closed = tokenizer.stopTexts.filter((closer) => whole.lastIndexOf(closer) >= done.length);
    const ends = closed.map((closer) => whole.lastIndexOf(closer) + closer.length);
    take(whole.slice(0, ends.length > 0 ? Math.max(...ends) : undefined), true);
  }
  if (pieces.length === 0) throw new RunnerError("this conversation has no assistant turn to learn from");
  const parts = await Promise.all(
    pieces.map(({ text }, index) => (index === 0 ? tokenizer.encodeRendered(text) : tokenizer.encode(text))),
  );
  const mask = pieces.flatMap(({ trained }, i) => parts[i]!.map(() => (trained ? Mask.trained : Mask.context)));
  return { tokens: Int32Array.from(parts.flat()), mask: Uint8Array.from(mask) };
}
