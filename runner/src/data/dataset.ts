import { createHash } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { basename, extname } from "node:path";
import type { Message, Row, ToolCall } from "../agents/types.ts";
import { messageOf, type RunnerError, usageError } from "../errors.ts";
import { JsonError, parseJson, parseJsonArray } from "./json.ts";

export interface DatasetOptions {
  /** Holds the prompt: a string, or a list of messages. */
  inputKey: string;
  labelKey?: string | null;
  /** Holds the reply, appended as an assistant message. */
  outputKey?: string | null;
  maxSamples?: number | null;
  /** What the recipe calls these, for messages. */
  optionNames?: { path?: string; inputKey?: string; labelKey?: string; outputKey?: string };
}

export interface Dataset {
  rows: Row[];
  /** sha256 over the rows as read: a checkpoint notices changed data by it. */
  fingerprint: string;
}

interface RawRow {
  /** From 1. A JSONL row's line is its number too. */
  line: number;
  number: number;
  value: unknown;
}

interface Problem {
  line: number;
  message: string;
}

const roles = ["system", "user", "assistant", "tool"];
const shownProblems = 10;

/**
 * Rows of a `.jsonl` file (a JSON object a line) or of a `.json` file (a list of objects). Lines end at `\n` alone, so
 * that U+2028 and the like stay inside their strings; a byte order mark, CRLF and blank lines do no harm. All that is
 * wrong is reported at once, with file and line.
 */
export function readDataset(path: string, options: DatasetOptions): Dataset {
  const names = {
    path: options.optionNames?.path ?? "data.prompt_dataset",
    inputKey: options.optionNames?.inputKey ?? "data.input_key",
    labelKey: options.optionNames?.labelKey ?? "data.label_key",
    outputKey: options.optionNames?.outputKey ?? "data.output_key",
  };
  const problems: Problem[] = [];
  const bytes = readBytes(path, names.path);
  const raw = extname(path) === ".json" ? readJsonRows(bytes, problems) : readJsonLines(bytes, problems);
  const limit = options.maxSamples ?? Number.POSITIVE_INFINITY;
  const rows: Row[] = [];
  for (const { line, number, value } of raw.slice(0, limit)) {
    try {
      rows.push(toRow(value, `${basename(path, extname(path))}:${number}`, options, names));
    } catch (error) {
      problems.push({ line, message: messageOf(error) });
    }
  }
  if (problems.length > 0) throw unusable(path, problems);
  if (rows.length === 0) throw usageError(`${names.path}: this file holds no row`, { position: { file: path } });
  const hash = createHash("sha256");
  for (const { id, fields } of rows) hash.update(`${id} ${JSON.stringify(fields)}\n`);
  return { rows, fingerprint: hash.digest("hex") };
}

function readBytes(path: string, option: string): Buffer {
  const fail = (what: string, fix: string) => usageError(`${option}: ${what}`, { position: { file: path }, fix });
  const extension = extname(path);
  if (extension !== ".jsonl" && extension !== ".json") {
    throw fail(
      `${extension || "a name without extension"} is not a format that is read here`,
      "give a .jsonl or .json file",
    );
  }
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) throw fail("this file does not exist", "the path is taken relative to the recipe's folder");
  if (found.isDirectory()) throw fail("this is a directory", "name the file in it");
  if (found.size === 0) throw fail("this file is empty", "give a file with at least one row");
  try {
    return readFileSync(path);
  } catch (error) {
    throw fail(`this file cannot be read: ${messageOf(error)}`, "check its permissions");
  }
}

function readJsonLines(bytes: Buffer, problems: Problem[]): RawRow[] {
  const rows: RawRow[] = [];
  let line = 0;
  for (let start = 0; start < bytes.length; ) {
    const newline = bytes.indexOf(0x0a, start);
    const end = newline < 0 ? bytes.length : newline;
    line++;
    try {
      const text = decodeUtf8(bytes.subarray(start, end), start === 0);
      if (text.trim() !== "") rows.push({ line, number: line, value: parseJson(text) });
    } catch (error) {
      problems.push({ line, message: describeJsonError(error) });
    }
    start = end + 1;
  }
  return rows;
}

function readJsonRows(bytes: Buffer, problems: Problem[]): RawRow[] {
  let text = "";
  const lineAt = (offset: number) => text.slice(0, offset).split("\n").length;
  try {
    text = decodeUtf8(bytes, true);
    let [line, counted] = [1, 0];
    return parseJsonArray(text).map(({ value, offset }, index) => {
      line += text.slice(counted, offset).split("\n").length - 1;
      counted = offset;
      return { line, number: index + 1, value };
    });
  } catch (error) {
    const line = error instanceof JsonError ? lineAt(error.offset) : 1;
    problems.push({ line, message: `${describeJsonError(error)} (a .json file is one list of objects)` });
    return [];
  }
}

function decodeUtf8(bytes: Buffer, atStart: boolean): string {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: !atStart }).decode(bytes);
}

function describeJsonError(error: unknown): string {
  if (error instanceof JsonError) return `not a row: ${error.message}`;
  return error instanceof TypeError ? "not a row: its bytes are not UTF-8" : messageOf(error);
}

function toRow(
  value: unknown,
  id: string,
  options: DatasetOptions,
  names: { inputKey: string; labelKey: string; outputKey: string },
): Row {
  if (!isObject(value)) throw new Error(`a row is an object with named columns, this is ${nameType(value)}`);
  const input = readColumn(value, options.inputKey, names.inputKey);
  const messages = toMessages(input, `${options.inputKey} (${names.inputKey})`);
  if (options.outputKey) {
    const content = readColumn(value, options.outputKey, names.outputKey);
    if (typeof content !== "string" || content === "") {
      const what = content === "" ? "empty" : nameType(content);
      throw new Error(`${options.outputKey} (${names.outputKey}) must be the reply's text, it is ${what}`);
    }
    messages.push({ role: "assistant", content });
  }
  const label = options.labelKey ? readColumn(value, options.labelKey, names.labelKey) : undefined;
  return { id, messages, label, fields: value };
}

function readColumn(row: Record<string, unknown>, key: string, option: string): unknown {
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
  const { role, content = null, tool_calls: toolCalls } = message;
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
  return message as unknown as Message;
}

function isToolCall(value: unknown): value is ToolCall {
  if (!isObject(value) || !isObject(value.function)) return false;
  const { name, arguments: input } = value.function;
  return typeof name === "string" && (typeof input === "string" || isObject(input));
}

function unusable(path: string, problems: Problem[]): RunnerError {
  problems.sort((one, other) => one.line - other.line);
  const [first] = problems as [Problem];
  const position = { file: path, line: first.line };
  if (problems.length === 1) return usageError(first.message, { position });
  const lines = problems.slice(0, shownProblems).map(({ line, message }) => `\n    ${path}:${line} ${message}`);
  const more = problems.length > shownProblems ? `\n    and ${problems.length - shownProblems} more` : "";
  return usageError(`${problems.length} rows cannot be used:${lines.join("")}${more}`, { position });
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function nameType(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  return (
    { string: "a text", number: "a number", boolean: "true or false", object: "an object" }[typeof value as string] ??
    typeof value
  );
}
