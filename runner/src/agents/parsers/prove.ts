import { isDeepStrictEqual } from "node:util";
import type { RenderOptions } from "../../data/chat-template.ts";
import { messageOf } from "../../errors.ts";
import type { Message } from "../types.ts";
import { plain, type ReplyFormat } from "./formats.ts";
import { parseReply } from "./reply.ts";

type Render = (messages: Message[], options: RenderOptions) => string;

const input = { text: "a b", count: 3, list: [1.5, "c"] };
const properties = { text: { type: "string" }, count: { type: "integer" }, list: { type: "array" } };
const schema = { name: "probe", description: "", parameters: { type: "object", properties } };
const tools = [{ type: "function", function: schema }];
const question: Message = { role: "user", content: "a" };
const called = { name: "probe", arguments: JSON.stringify(input) };
const call = { id: "call00001", type: "function" as const, function: called };
/** What templates put after a reply, beside the tokenizer's own ends. */
const closer = /(?:<\|\w+\|>|<｜end▁of▁sentence｜>|<\/s>)\s*$/;

/**
 * Renders a call with the model's template and reads it back (case A7), and finds whether the template opens the
 * reasoning. A call that does not come back makes the format plain, with a warning: calls then stay text.
 */
export function proveFormat(
  format: ReplyFormat,
  render: Render,
  ends: readonly string[] = [],
): { format: ReplyFormat; warning: string | null } {
  const opening = render([question], { addGenerationPrompt: true });
  const opensThink = format.thinks && opening.trimEnd().endsWith("<think>");
  let shown: string | null = null;
  // Templates differ in whether a message of calls has content.
  for (const content of [null, ""]) {
    try {
      const reply = renderReply({ role: "assistant", content, tool_calls: [call] }, render, ends);
      const back = parseReply(reply, format, tools).toolCalls.map((one) => one.function);
      const values = back.map((one) => [one.name, JSON.parse(one.arguments)]);
      if (isDeepStrictEqual(values, [["probe", input]])) return { format: { ...format, opensThink }, warning: null };
      if (reply.includes("probe")) shown = JSON.stringify(reply.slice(0, 300));
    } catch (error) {
      if (format.name !== plain.name) shown ??= messageOf(error);
    }
  }
  const warning = `tool calls stay text: the template's are not ${format.name}: ${shown ?? "it renders none"}`;
  const isSilent = format.name === plain.name && shown === null;
  return { format: { ...format, ...plain, opensThink }, warning: isSilent ? null : warning };
}

/** What the template makes of a reply, without what it puts around. */
function renderReply(message: Message, render: Render, ends: readonly string[]): string {
  const whole = render([question, message], { tools });
  const before = [true, false].map((addGenerationPrompt) => render([question], { tools, addGenerationPrompt }));
  const reply = whole.slice(before.find((text) => whole.startsWith(text))?.length ?? 0).replace(closer, "");
  const end = ends.find((text) => reply.endsWith(text)) ?? "";
  return reply.slice(0, reply.length - end.length);
}
