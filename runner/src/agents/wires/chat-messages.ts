import type { ToolSchema } from "../../data/chat-template.ts";
import { isObject } from "../../data/config-json.ts";
import { type Json, none } from "../../engines/embedded/fields.ts";
import type { Message, ToolCall } from "../types.ts";
import { readList, readString, wrong } from "./fields.ts";

/** OpenAI's messages and tools as the template takes them, checked, so that a template never meets another shape. */

const roles = ["system", "user", "assistant", "tool"];

export function readMessages(value: unknown): Message[] {
  return readList(value, "messages", "message").map((message, index) => readMessage(message, `messages.${index}`));
}

export function readMessage(message: Json, where: string): Message {
  const role = (message.role === "developer" ? "system" : message.role) as Message["role"];
  const calls = none(message.tool_calls ?? null) ? null : message.tool_calls;
  if (!roles.includes(role)) throw wrong(`${where}.role`, `must be ${[...roles, "developer"].join(", ")}`);
  if (!none(message.function_call ?? null)) throw wrong(`${where}.function_call`, "is deprecated: give tool_calls");
  if (calls !== null && role !== "assistant") throw wrong(`${where}.tool_calls`, "belongs to an assistant");
  const nothing = role === "assistant" ? (calls === null ? "" : null) : undefined;
  const content = message.content ?? nothing;
  return {
    role,
    content: content === null ? null : readText(content, `${where}.content`),
    ...optionalText(message.reasoning_content ?? message.reasoning, "reasoning_content", where),
    ...optionalText(message.name, "name", where),
    ...optionalText(message.tool_call_id, "tool_call_id", where),
    ...(calls === null ? {} : { tool_calls: readCalls(calls, `${where}.tool_calls`) }),
  };
}

const textTypes: unknown[] = ["text", "input_text", "output_text", "reasoning_text", "summary_text"];

/** Text, or parts of text that become lines, as vLLM joins them. */
export function readText(content: unknown, where: string): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw wrong(where, "must be a string or a list of text parts");
  const texts = content.map((part, index) => {
    const { type, text, refusal } = isObject(part) ? part : ({ type: typeof part } as Json);
    if (textTypes.includes(type) && typeof text === "string") return text;
    if (type === "refusal" && typeof refusal === "string") return refusal;
    throw wrong(`${where}.${index}`, `has type ${JSON.stringify(type)}: this model takes text parts only`);
  });
  return texts.join("\n");
}

function readCalls(calls: unknown, where: string): ToolCall[] {
  return readList(calls, where).map((call, index): ToolCall => {
    const at = `${where}.${index}`;
    const called = isObject(call.function) ? call.function : {};
    const { arguments: input = "{}" } = called;
    if (typeof input !== "string" && !isObject(input)) throw wrong(`${at}.function.arguments`, "must be JSON text");
    const name = readString(called.name, `${at}.function.name`);
    return { ...optionalText(call.id, "id", at), type: "function", function: { name, arguments: input } };
  });
}

/** Functions, whatever the wire; what a provider would run, or a template cannot show, is left out. */
export function readTools(value: unknown): ToolSchema[] {
  const tools = readList(value ?? [], "tools").filter(
    (tool) => tool.type === "function" || isObject(tool.input_schema),
  );
  return tools.map(({ name, description = "", parameters, input_schema, function: own }, index) => {
    const schema = parameters ?? input_schema ?? { type: "object", properties: {} };
    const called = isObject(own) ? own : { name, description, parameters: schema };
    if (typeof called.name !== "string") throw wrong(`tools.${index}`, "must be a function with a name");
    return { type: "function", function: called };
  });
}

function optionalText<Key extends string>(value: unknown, key: Key, where: string): { [K in Key]?: string } {
  if (value === undefined || value === null) return {};
  return { [key]: readString(value, `${where}.${key}`) } as { [K in Key]?: string };
}
