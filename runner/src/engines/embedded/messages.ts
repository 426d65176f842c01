import type { Message, ToolCall } from "../../agents/types.ts";
import type { ToolSchema } from "../../data/chat-template.ts";
import { isObject, type Json, none, read, refuseUnsupported } from "./fields.ts";
import { HttpError } from "./http-error.ts";

/** OpenAI's messages and tools as the template takes them, checked, so that a template never meets another shape. */

const roles = ["system", "user", "assistant", "tool"];

const messageFields = {
  role: read,
  content: read,
  name: read,
  tool_calls: read,
  tool_call_id: read,
  // Clients echo what we answered.
  refusal: none,
  annotations: none,
  audio: none,
  function_call: none,
  reasoning: none,
};

export function readMessages(value: unknown): Message[] {
  if (!Array.isArray(value) || value.length === 0) {
    throw new HttpError(400, "messages must be a list of at least one message.", "messages");
  }
  return value.map((message, index) => readMessage(message, `messages.${index}`));
}

function readMessage(message: unknown, where: string): Message {
  if (!isObject(message)) throw wrong(where, "must be an object");
  refuseUnsupported(message, messageFields, `${where}.`);
  const { role, name, tool_call_id: callId } = message;
  if (typeof role !== "string" || !roles.includes(role)) throw wrong(`${where}.role`, `must be ${roles.join(", ")}`);
  const calls = message.tool_calls ?? null;
  if (calls !== null && role !== "assistant") throw wrong(`${where}.tool_calls`, "belongs to an assistant");
  const content = readContent(message.content, `${where}.content`);
  if (content === null && calls === null) throw wrong(`${where}.content`, "must be a string or a list of text parts");
  return {
    role: role as Message["role"],
    content,
    ...optionalText(name, "name", where),
    ...optionalText(callId, "tool_call_id", where),
    ...(calls === null ? {} : { tool_calls: readCalls(calls, `${where}.tool_calls`) }),
  };
}

/** Text, or parts of text that become lines, as vLLM joins them. */
function readContent(content: unknown, where: string): string | null {
  if (content === undefined || content === null) return null;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw wrong(where, "must be a string or a list of text parts");
  const texts = content.map((part, index) => {
    if (isObject(part) && part.type === "text" && typeof part.text === "string") return part.text;
    const type = isObject(part) ? JSON.stringify(part.type) : typeof part;
    throw wrong(`${where}.${index}`, `has type ${type}: the embedded engine takes text parts only`);
  });
  return texts.join("\n");
}

function readCalls(calls: unknown, where: string): ToolCall[] {
  if (!Array.isArray(calls)) throw wrong(where, "must be a list");
  return calls.map((call, index): ToolCall => {
    const at = `${where}.${index}`;
    const { id, function: called } = isObject(call) ? call : ({} as Json);
    if (!isObject(called) || typeof called.name !== "string") throw wrong(`${at}.function.name`, "must be a string");
    const { name, arguments: input = "{}" } = called;
    if (typeof input !== "string" && !isObject(input)) throw wrong(`${at}.function.arguments`, "must be JSON text");
    return { ...optionalText(id, "id", at), type: "function", function: { name, arguments: input } };
  });
}

export function readTools(value: unknown): ToolSchema[] | undefined {
  if (value === undefined || value === null) return undefined;
  if (!Array.isArray(value)) throw wrong("tools", "must be a list");
  value.forEach((tool, index) => {
    const named = isObject(tool) && isObject(tool.function) && typeof tool.function.name === "string";
    if (!named || tool.type !== "function") throw wrong(`tools.${index}`, "must be a function with a name");
  });
  return value.length === 0 ? undefined : (value as ToolSchema[]);
}

function optionalText<Key extends string>(value: unknown, key: Key, where: string): { [K in Key]?: string } {
  if (value === undefined || value === null) return {};
  if (typeof value !== "string") throw wrong(`${where}.${key}`, "must be a string");
  return { [key]: value } as { [K in Key]?: string };
}

function wrong(where: string, what: string): HttpError {
  return new HttpError(400, `${where} ${what}.`, where);
}
