import type { ToolSchema } from "../../data/chat-template.ts";
import { parseCalls } from "../../data/json.ts";
import { type Layout, plain, type ReplyFormat, type TakesText } from "./formats.ts";

/** A call as the policy wrote it. Arguments are the text of an object: the sampled one, where the format is JSON. */
export interface ParsedCall {
  type: "function";
  function: { name: string; arguments: string };
}

export interface ParsedReply {
  /** Without the reasoning and without the calls; null when there are only calls. */
  content: string | null;
  reasoning: string | null;
  toolCalls: ParsedCall[];
  /** Marks of calls that are in the content because no call could be read after them. */
  unread: number;
}

/**
 * A reply's text, taken apart. What is not a whole, well-formed call stays content; any text is taken. `tools` tells
 * formats that write text without quotes which parameters are text; where they are null, calls stay content too.
 */
export function parseReply(text: string, format: ReplyFormat, tools: ToolSchema[] | null): ParsedReply {
  const { reasoning, rest } = splitReasoning(text, format);
  const layout = tools ? format : plain;
  const { content, toolCalls } = splitCalls(rest, layout, (tool, parameter) => isText(tools ?? [], tool, parameter));
  const unread = layout.open === null ? 0 : content.split(layout.open).length - 1;
  if (rest === text && toolCalls.length === 0) return { content, reasoning, toolCalls, unread };
  // Blanks beside the marks belong to the layout.
  const kept = content.trim();
  return { content: kept === "" && toolCalls.length > 0 ? null : kept, reasoning, toolCalls, unread };
}

const [think, unthink] = ["<think>", "</think>"];

function splitReasoning(text: string, { thinks, opensThink }: ReplyFormat) {
  const end = text.indexOf(unthink);
  const begins = text.trimStart().startsWith(think);
  if (!thinks || (end < 0 && !begins && !opensThink)) return { reasoning: null, rest: text };
  const from = begins ? text.indexOf(think) + think.length : 0;
  // Cut off before its end, all of it is reasoning.
  const reasoning = text.slice(from, end < 0 ? text.length : end).trim();
  return { reasoning: reasoning === "" ? null : reasoning, rest: end < 0 ? "" : text.slice(end + unthink.length) };
}

function splitCalls(text: string, { open, close, asJson }: Layout, takesText: TakesText) {
  const toolCalls: ParsedCall[] = [];
  const take = (block: string): boolean => {
    const calls = readCalls(asJson(block.trim(), takesText));
    toolCalls.push(...calls);
    return calls.length > 0;
  };
  if (open === null) return { content: take(text) ? "" : text, toolCalls };
  if (close === null) {
    const [content, ...blocks] = text.split(open);
    return { content: content + blocks.map((block) => (take(block) ? "" : open + block)).join(""), toolCalls };
  }
  const parts = text.split(close);
  const last = parts.pop()!;
  const kept = parts.map((part) => {
    const at = part.lastIndexOf(open);
    return at >= 0 && take(part.slice(at + open.length)) ? part.slice(0, at) : part + close;
  });
  return { content: kept.join("") + last, toolCalls };
}

/** None unless all of the JSON is calls. */
function readCalls(json: string | null): ParsedCall[] {
  try {
    const calls = [parseCalls(json ?? "")].flat().map(toCall);
    return calls.includes(null) ? [] : (calls as ParsedCall[]);
  } catch {
    return [];
  }
}

const known = ["id", "type"];

function toCall(value: unknown): ParsedCall | null {
  const { name, arguments: own, parameters: input = own, ...others } = { ...(value as Record<string, unknown>) };
  if (typeof name !== "string" || typeof input !== "string") return null;
  if (Object.keys(others).some((key) => !known.includes(key))) return null;
  // Some templates quote them as text.
  const text = input.startsWith('"') ? (JSON.parse(input) as string) : input;
  const isObject = text.startsWith("{") && typeof JSON.parse(text) === "object";
  return isObject ? { type: "function", function: { name, arguments: text } } : null;
}

function isText(tools: ToolSchema[], tool: string, parameter: string): boolean {
  const called = tools.map((one) => one.function as ToolSchema).find(({ name }) => name === tool);
  const { properties = {} } = (called?.parameters ?? {}) as { properties?: Record<string, { type?: unknown }> };
  return Object.hasOwn(properties, parameter) && properties[parameter]?.type === "string";
}
