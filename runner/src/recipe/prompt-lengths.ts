import type { Row } from "../agents/types.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { fileError, messageOf, RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";

const shownRows = 10;
/** An agent whose `reset` replaces the messages has no use for a long column either. */
const fix = "raise data.max_len, leave these rows out, or name another column with data.input_key";

/** That every prompt renders and leaves room for a reply within `maxLen` tokens. `file`, `option`: the dataset's. */
export async function checkPromptLengths(
  tokenizer: Tokenizer,
  rows: Row[],
  { maxLen, file, option }: { maxLen: number; file: string; option: string },
): Promise<void> {
  const rendered = rows.map((row) => ({ id: row.id, text: render(tokenizer, row, file) }));
  // Few texts are that long: one of fewer bytes is of fewer tokens, and is not tokenized.
  const candidates = rendered.filter(({ text }) => Buffer.byteLength(text) + 1 >= maxLen);
  const encoded = await tokenizer.encodeRenderedBatch(candidates.map(({ text }) => text));
  const long = candidates.flatMap(({ id }, i) => {
    const tokens = encoded[i]!.length;
    return tokens >= maxLen ? [`${id} has ${tokens} tokens`] : [];
  });
  if (long.length === 0) return;
  const what = long.length === 1 ? "1 prompt leaves" : `${long.length} prompts leave`;
  const message = `${option}: ${what} no room for a reply, since data.max_len is ${maxLen}:`;
  throw fileError(file, `${message}${indented(long, shownRows)}`, fix);
}

function render(tokenizer: Tokenizer, { id, messages }: Row, file: string): string {
  try {
    return tokenizer.renderChat(messages, { addGenerationPrompt: true });
  } catch (error) {
    if (!(error instanceof RunnerError)) throw error;
    throw fileError(file, `row ${id}: ${messageOf(error)}`);
  }
}
