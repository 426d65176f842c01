import type { Message, Row } from "../agents/types.ts";
import { type Config, isObject } from "./config-json.ts";

export interface Columns {
  /** Holds the prompt: a string, or a list of messages. */
  inputKey: string;
  labelKey?: string | null;
  /** Holds the reply, appended as an assistant message. */
  outputKey?: string | null;
}

const roles = ["system", "user", "assistant", "tool"];

/** Throws what is wrong with it. */
export function toRow(value: unknown, id: string, { inputKey, labelKey, outputKey }: Columns): Row {
  if (!isObject(value)) throw new Error(`a row is an object with named columns, this is ${nameType(value)}`);
  const messages = toMessages(readColumn(value, inputKey, "data.input_key"), `${inputKey} (data.input_key)`);
  if (outputKey) {
    const content = readColumn(value, outputKey, "data.output_key");
    if (typeof content !== "string" || content === "") {
      const what = content === "" ? "empty" : nameType(content);
      throw new Error(`${outputKey} (data.output_key) must be the reply's text, it is ${what}`);
    }
    messages.push({ role: "assistant", content });
  }
  const label = labelKey ? readColumn(value, labelKey, "data.label_key") : undefined;
  return { id, messages, label, fields: value };
}

function readColumn(row: Config, key: string, option: string): unknown {
  if (!Object.hasOwn(row, key)) {
    const keys = Object.keys(row).join(", ") || "none";
    throw new Error(`no column ${JSON.stringify(key)}, which ${option} names; columns here: ${keys}`);
  }
  if (row[key] === null) throw new Error(`column ${JSON.stringify(key)}, which ${option} names, is null`);
  return row[key];
}

function toMessages(input: unknown, what: string): Message[] {
  if (typeof input === "string") {
    if (input === "") throw new Error(`${what} is an empty text`);
    return [{ role: "user", content: input }];
  }
  if (!Array.isArray(input)) throw new Error(`${what} must be a text or a list of messages, it is ${nameType(input)}`);
  if (input.length === 0) throw new Error(`${what} is an empty conversation`);
  return input.map((message, index) => toMessage(message, `${what}, message ${index}`));
}

function toMessage(message: unknown, what: string): Message {
  if (!isObject(message))
    throw new Error(`${what} must be an object with role and content, it is ${nameType(message)}`);
  // Tables and typed clients write null for an absent field; templates ask whether it is there.
  const fields: Config = Object.fromEntries(Object.entries(message).filter(([, value]) => value !== null));
  const { role, content = null, tool_calls: toolCalls } = fields;
  if (typeof role !== "string" || !roles.includes(role)) {
    throw new Error(`${what}: unknown role ${JSON.stringify(role)}; roles are ${roles.join(", ")}`);
  }
  if (typeof content !== "string" && content !== null) {
    throw new Error(`${what}: content must be a text or null, it is ${nameType(content)}`);
  }
  if (content === null && !toolCalls) throw new Error(`${what}: neither content nor tool_calls`);
  if (toolCalls !== undefined && !(Array.isArray(toolCalls) && toolCalls.every(isToolCall))) {
    throw new Error(`${what}: tool_calls must be a list of {function: {name, arguments}}`);
  }
  return { ...fields, content } as unknown as Message;
}

function isToolCall(value: unknown): boolean {
  if (!isObject(value) || !isObject(value.function)) return false;
  const { name, arguments: input } = value.function;
  return typeof name === "string" && (typeof input === "string" || isObject(input));
}

const types = { string: "a text", number: "a number", boolean: "true or false", object: "an object" };

function nameType(value: unknown): string {
  if (value === null) return "null";
  return Array.isArray(value) ? "a list" : types[typeof value as keyof typeof types];
}
