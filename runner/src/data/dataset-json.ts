import { messageOf } from "../errors.ts";
import type { FileContent, FileRow, RowProblem } from "./dataset-files.ts";
import { JsonError, parseJson, parseJsonArray } from "./json.ts";
import { decodeUtf8, Utf8Error } from "./utf8.ts";

/** A JSON object a line. Lines end at `\n` alone: U+2028 and the like stay in their strings. Blank ones are skipped. */
export function readJsonLines(bytes: Buffer): FileContent {
  const rows: FileRow[] = [];
  const problems: RowProblem[] = [];
  let line = 0;
  for (let start = 0; start < bytes.length; ) {
    const newline = bytes.indexOf(0x0a, start);
    const end = newline < 0 ? bytes.length : newline;
    line++;
    try {
      const text = decodeUtf8(bytes.subarray(start, end));
      if (text.trim() !== "") rows.push({ line, number: line, value: parseJson(text) });
    } catch (error) {
      problems.push({ line, number: line, message: `not a row: ${messageOf(error)}` });
    }
    start = end + 1;
  }
  return { rows, problems };
}

export function readJsonList(bytes: Buffer): FileContent {
  let text = "";
  try {
    text = decodeUtf8(bytes);
    let [line, counted] = [1, 0];
    const rows = parseJsonArray(text).map(({ value, offset }, index) => {
      line += text.slice(counted, offset).split("\n").length - 1;
      counted = offset;
      return { line, number: index + 1, value };
    });
    return { rows, problems: [] };
  } catch (error) {
    const message = `not a row: ${messageOf(error)} (a .json file is one list of objects)`;
    return { rows: [], problems: [{ line: lineOf(error, text), number: 1, message }] };
  }
}

function lineOf(error: unknown, text: string): number {
  if (error instanceof JsonError) return text.slice(0, error.offset).split("\n").length;
  if (error instanceof Utf8Error) return error.line;
  throw error;
}
