import { Mask, type Message, type Row } from "../agents/types.ts";
import { fileError, RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";
import type { Recipe } from "../recipe/schema.ts";
import type { ToolSchema } from "./chat-template.ts";
import type { Tokenizer } from "./tokenizer.ts";

/**
 * A conversation to imitate. Assistant turns are cut out of the whole rendering and tokenized apart, so that the ids
 * are those of a rollout. `mask` is 1 on assistants' text and ends of turn, of the last turn alone where asked for.
 */
export async function encodeDemonstration(
  tokenizer: Tokenizer,
  messages: Message[],
  { tools, lastTurnOnly = false }: { tools?: ToolSchema[]; lastTurnOnly?: boolean } = {},
) {
  const { text, turns } = tokenizer.renderTurns(messages, tools);
  if (turns.length === 0) throw new RunnerError("this conversation has no assistant turn to learn from");
  const pieces = turns.flatMap(({ start, end }, turn) => [
    { text: text.slice(turns[turn - 1]?.end ?? 0, start), trained: false },
    { text: text.slice(start, end), trained: !lastTurnOnly || turn === turns.length - 1 },
  ]);
  const parts = await Promise.all(
    pieces.map(({ text }, index) => (index === 0 ? tokenizer.encodeRendered(text) : tokenizer.encode(text))),
  );
  const mask = pieces.flatMap(({ trained }, i) => parts[i]!.map(() => (trained ? Mask.trained : Mask.context)));
  return { tokens: Int32Array.from(parts.flat()), mask: Uint8Array.from(mask) };
}

export interface Demonstration {
  id: string;
  tokens: Int32Array;
  mask: Uint8Array;
}

const shownRows = 10;

/**
 * Rows as sft takes them: null where one is left out. Longer ones than `data.max_len` are refused, left out or cut, as
 * `data.overlong` says; one that is cut before its first reply is left out. Throws where none is left.
 * `file`, `option`: the rows', for messages.
 */
export async function encodeDemonstrations(
  tokenizer: Tokenizer,
  rows: readonly Row[],
  { data }: Recipe,
  { file, option }: { file: string; option: string },
): Promise<{ rows: (Demonstration | null)[]; truncated: number; dropped: number }> {
  const { max_len: most, overlong, tools_key: toolsKey } = data;
  const problems: string[] = [];
  let truncated = 0;
  const encode = async ({ id, messages, fields }: Row): Promise<Demonstration | null> => {
    const tools = (fields[toolsKey ?? ""] ?? undefined) as ToolSchema[] | undefined;
    const options = { tools, lastTurnOnly: data.train_on_last_turn_only };
    const { tokens, mask } = await encodeDemonstration(tokenizer, messages, options).catch((error) => {
      if (!(error instanceof RunnerError)) throw error;
      problems.push(`${id}: ${error.advice}`);
      return { tokens: new Int32Array(), mask: new Uint8Array() };
    });
    if (tokens.length <= most) return { id, tokens, mask };
    if (overlong === "refuse") problems.push(`${id} has ${tokens.length} tokens, data.max_len is ${most}`);
    if (overlong !== "truncate" || !mask.subarray(1, most).includes(Mask.trained)) return null;
    truncated++;
    return { id, tokens: tokens.slice(0, most), mask: mask.slice(0, most) };
  };
  const encoded = await Promise.all(rows.map(encode));
  if (problems.length > 0) {
    const message = `${option}: ${problems.length} rows cannot be demonstrations:${indented(problems, shownRows)}`;
    throw fileError(file, message, "leave them out; data.overlong drops or truncates those that are too long");
  }
  const dropped = encoded.filter((row) => row === null).length;
  if (dropped < rows.length) return { rows: encoded, truncated, dropped };
  const fix = "set data.max_len to the longest row's tokens, or more";
  throw fileError(file, `${option}: none of its ${rows.length} rows fits in data.max_len ${most} with a reply`, fix);
}
