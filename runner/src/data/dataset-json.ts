import { messageOf } from "../errors.ts";
import type { FileContent } from "./dataset-files.ts";
import { parseJson, parseNodes, toValue } from "./json.ts";
import { decodeUtf8, TextError } from "./utf8.ts";

/** A JSON object a line. Lines end at `\n` alone: U+2028 and the like stay in their strings. Blank ones are skipped. */
export function readJsonLines(bytes: Buffer): FileContent {
  const content: FileContent = { rows: [], problems: [] };
  for (let start = 0, line = 1; start < bytes.length; line++) {
    const newline = bytes.indexOf(0x0a, start);
    const end = newline < 0 ? bytes.length : newline;
    const stored = bytes.subarray(start, end);
    add(content, line, line, () => {
      const text = decodeUtf8(stored);
      return text.trim() === "" ? undefined : parseJson(text);
    });
    start = end + 1;
  }
  return content;
}

/** One list of objects. */
export function readJsonList(bytes: Buffer): FileContent {
  const content: FileContent = { rows: [], problems: [] };
  try {
    const text = decodeUtf8(bytes);
    const list = parseNodes(text);
    if (list.type !== "array") throw new TextError("expected a list", 1);
    let [line, counted] = [1, 0];
    for (const [index, node] of list.children!.entries()) {
      line += text.slice(counted, node.offset).split("\n").length - 1;
      counted = node.offset;
      add(content, index + 1, line, () => toValue(node, text));
    }
  } catch (error) {
    if (!(error instanceof TextError)) throw error;
    const message = `not a row: ${error.message} (a .json file is one list of objects)`;
    content.problems.push({ line: error.line, number: 1, message });
  }
  return content;
}

/** Nothing where `read` gives undefined. */
function add({ rows, problems }: FileContent, number: number, line: number, read: () => unknown): void {
  try {
    const value = read();
    if (value !== undefined) rows.push({ number, line, value });
  } catch (error) {
    problems.push({ number, line, message: `not a row: ${messageOf(error)}` });
  }
}
