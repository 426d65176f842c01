import { type CsvError, parse } from "csv-parse/sync";
import type { FileContent, FileRow } from "./dataset-files.ts";
import { decodeUtf8, Utf8Error } from "./utf8.ts";

interface Record {
  cells: string[];
  /** On which it begins, from 1: quoted cells may hold line ends. */
  line: number;
}

const quoteProblems: { [code: string]: string } = {
  CSV_QUOTE_NOT_CLOSED: "a quoted cell of this row is never closed",
  CSV_INVALID_CLOSING_QUOTE: "a quoted cell of this row goes on after its closing quote; a quote in a cell is doubled",
  INVALID_OPENING_QUOTE: "a quote in a cell without quotes; quote the cell and double the quotes in it",
};

/** RFC 4180 with a header; every cell is a text, blank lines are skipped. */
export function readCsv(bytes: Buffer): FileContent {
  const { records, problem } = splitRecords(bytes);
  const [header, ...body] = records;
  const problems = problem ? [problem] : [];
  if (!header) return { rows: [], problems };
  const twice = header.cells.find((name, index) => header.cells.indexOf(name) !== index);
  if (twice !== undefined) {
    const message = `the header names the column ${JSON.stringify(twice)} twice`;
    return { rows: [], problems: [{ line: header.line, number: 0, message }] };
  }
  const rows: FileRow[] = [];
  for (const [index, { cells, line }] of body.entries()) {
    const number = index + 1;
    if (cells.length === header.cells.length) {
      const value = Object.fromEntries(header.cells.map((name, column) => [name, cells[column]]));
      rows.push({ number, line, value });
    } else {
      const message = `not a row: it has ${count(cells.length)}, the header ${count(header.cells.length)}`;
      problems.push({ number, line, message });
    }
  }
  return { rows, problems };
}

function splitRecords(bytes: Buffer): { records: Record[]; problem?: FileContent["problems"][number] } {
  const records: Record[] = [];
  const lineAt = lineCounter(bytes);
  let end = 0;
  try {
    parse(decodeUtf8(bytes), {
      record_delimiter: ["\r\n", "\n"],
      relax_column_count: true,
      skip_empty_lines: true,
      on_record: (cells: string[], info) => {
        records.push({ cells, line: lineAt(end) });
        end = info.bytes;
        return null;
      },
    });
    return { records };
  } catch (error) {
    if (error instanceof Utf8Error) {
      return { records: [], problem: { line: error.line, number: 0, message: `not a row: ${error.message}` } };
    }
    const { code, message } = error as CsvError;
    const what = quoteProblems[code] ?? message;
    return { records, problem: { line: lineAt(end), number: records.length, message: `not a row: ${what}` } };
  }
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
