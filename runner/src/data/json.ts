import { type Node, type ParseError, parseTree, printParseErrorCode } from "jsonc-parser";
import { TextError } from "./utf8.ts";

/**
 * `JSON.parse` that loses nothing: repeated keys, lone surrogates, NaN and numbers beyond JavaScript are errors. A tool
 * call's `arguments` with a number whose text would change (1.0, 1e-07) come back as JSON text, which templates take.
 */
export function parseJson(text: string): unknown {
  return toValue(parseNodes(text), text);
}

/** As `parseJson`, but `arguments` (Llama: `parameters`) come back as text, with any number. */
export function parseCalls(text: string): unknown {
  return toValue(parseNodes(text), text, true);
}

/** Throws a `TextError` for what is not JSON. */
export function parseNodes(text: string): Node {
  const errors: ParseError[] = [];
  const root = parseTree(text, errors, { disallowComments: true });
  const [first] = errors;
  if (!first) return root!;
  const line = text.slice(0, first.offset).split("\n").length;
  const rest = text.slice(first.offset);
  if (rest.trim() === "") throw new TextError("the JSON is cut off", line);
  const what = printParseErrorCode(first.error)
    .replace(/\B[A-Z]/g, " $&")
    .toLowerCase();
  if (what === "invalid symbol") throw new TextError(`${/^[\w+-]+|^./su.exec(rest)![0]} is not JSON`, line);
  throw new TextError(`${what}: ${JSON.stringify(rest.slice(0, Math.min(first.length, 40)))}`, line);
}

/** The value of a node of `text`, as of `parseJson`; with `keepsArguments`, of `parseCalls`. */
export function toValue(node: Node, text: string, keepsArguments = false): unknown {
  const { type, value, children = [] } = node;
  const source = sourceOf(node, text);
  if (type === "object") return toObject(node, text, keepsArguments);
  if (type === "array") return children.map((item) => toValue(item, text, keepsArguments));
  if (type === "string" && !value.isWellFormed()) throw new Error("a lone surrogate in a string");
  if (type === "number" && !keepsArguments && !fitsDouble(source)) {
    throw new Error(`the number ${source} does not fit a double; write it as a string`);
  }
  return value;
}

function toObject({ children, parent }: Node, text: string, keepsArguments: boolean): object {
  const isCall = keepsArguments || (parent?.type === "property" && parent.children![0]!.value === "function");
  const entries = new Map<unknown, unknown>();
  for (const property of children!) {
    const [key, item] = property.children as [Node, Node];
    const name = toValue(key, text);
    if (entries.has(name)) throw new Error(`the key ${JSON.stringify(name)} appears twice`);
    let value = toValue(item, text, keepsArguments);
    const source = sourceOf(item, text);
    if (keepsArguments && (name === "arguments" || name === "parameters")) value = source;
    else if (isCall && name === "arguments" && item.children && changesNumbers(source)) value = spaceAsPython(source);
    entries.set(name, value);
  }
  // fromEntries takes "__proto__" as data.
  return Object.fromEntries(entries);
}

function sourceOf({ offset, length }: Node, text: string): string {
  return text.slice(offset, offset + length);
}

function fitsDouble(number: string): boolean {
  const value = Number(number);
  return Number.isFinite(value) && (!/^-?\d+$/.test(number) || BigInt(number) === BigInt(value));
}

const strings = /("(?:[^"\\]|\\.)*")/;

/** Whether JavaScript would write one of the numbers otherwise. */
function changesNumbers(json: string): boolean {
  const outside = json.split(strings).filter((_, index) => index % 2 === 0);
  return outside.some((part) => part.match(/[-\d][\d.eE+-]*/g)?.some((number) => String(Number(number)) !== number));
}

/** Spaced as Python's `json.dumps`, as templates' `tojson` would. */
function spaceAsPython(json: string): string {
  const parts = json.split(strings);
  return parts.map((part, i) => (i % 2 === 1 ? part : part.replace(/\s/g, "").replace(/[,:]/g, "$& "))).join("");
}
