import { type CsvError, parse } from "csv-parse/sync";
import type { FileContent } from "./dataset-files.ts";
import { decodeUtf8, TextError } from "./utf8.ts";

const quoteProblems: { [code: string]: string } = {
  CSV_QUOTE_NOT_CLOSED: "a quoted cell of this row is never closed",
  CSV_INVALID_CLOSING_QUOTE: "a quoted cell of this row goes on after its closing quote; a quote in a cell is doubled",
  INVALID_OPENING_QUOTE: "a quote in a cell without quotes; quote the cell and double the quotes in it",
};

/** RFC 4180 with a header; every cell is a text, blank lines are skipped. */
export function readCsv(bytes: Buffer): FileContent {
  const { rows, problems }: FileContent = { rows: [], problems: [] };
  const lineAt = lineCounter(bytes);
  let header: string[] | null = null;
  let [number, end] = [0, 0];
  const addRecord = (cells: string[], info: { bytes: number }) => {
    // On which it begins: quoted cells may hold line ends.
    const place = { number: number++, line: lineAt(end) };
    end = info.bytes;
    const names = header ?? cells;
    const twice = header ? undefined : names.find((name, index) => names.indexOf(name) !== index);
    const lengths = `not a row: it has ${count(cells.length)}, the header ${count(names.length)}`;
    if (twice !== undefined) problems.push({ ...place, message: `the header names the column "${twice}" twice` });
    else if (cells.length !== names.length) problems.push({ ...place, message: lengths });
    else if (header) rows.push({ ...place, value: Object.fromEntries(names.map((name, at) => [name, cells[at]])) });
    header = names;
    return null;
  };
  const delimiters = { record_delimiter: ["\r\n", "\n"], relax_column_count: true, skip_empty_lines: true };
  try {
    parse(decodeUtf8(bytes), { ...delimiters, on_record: addRecord });
  } catch (error) {
    const { code, message } = error as CsvError;
    const line = error instanceof TextError ? error.line : lineAt(end);
    problems.push({ number, line, message: `not a row: ${quoteProblems[code] ?? message}` });
  }
  return { rows, problems };
}

/**
 * For rising byte offsets, the line where the next record begins. The parser's own count takes a lone CR in a cell for
 * a line.
 */
function lineCounter(bytes: Buffer): (offset: number) => number {
  let [at, line] = [0, 1];
  return (offset) => {
    for (; at < offset || bytes[at] === 0x0a || bytes[at] === 0x0d; at++) if (bytes[at] === 0x0a) line++;
    return line;
  };
}

function count(cells: number): string {
  return cells === 1 ? "1 cell" : `${cells} cells`;
}
