import { readFileSync, statSync } from "node:fs";
import { extname } from "node:path";
import { gunzipSync } from "node:zlib";
import { messageOf, usageError } from "../errors.ts";
import { readJsonLines, readJsonList } from "./dataset-json.ts";

/** What a file holds in a row's place. */
export interface FileRow {
  /** From 1; in JSONL the line. */
  number: number;
  /** The line that the row begins on, from 1; null in a file without lines. */
  line: number | null;
  value: unknown;
}

/** Why a row, or the rest of the file from it on, cannot be used. */
export interface RowProblem extends Omit<FileRow, "value"> {
  message: string;
}

export interface FileContent {
  rows: FileRow[];
  problems: RowProblem[];
}

/** Throws where the bytes are no file of rows. */
type FormatReader = (bytes: Buffer) => FileContent | Promise<FileContent>;

const byteOrderMark = Buffer.from("\ufeff");

/** By extension; libraries load when a file needs them. */
const readers: Record<string, FormatReader> = {
  ".jsonl": readJsonLines,
  ".json": readJsonList,
  ".csv": async (bytes) => (await import("./dataset-csv.ts")).readCsv(bytes),
  ".parquet": async (bytes) => (await import("./dataset-parquet.ts")).readParquet(bytes),
};

/** `.jsonl` of `a.jsonl`, `.jsonl.gz` of `a.jsonl.gz`. */
export function formatExtension(path: string): string {
  const last = extname(path);
  return last === ".gz" ? extname(path.slice(0, -last.length)) + last : last;
}

/** A file in the format that its name's ending says. `option`: what the recipe calls the path. */
export async function readDataFile(path: string, option: string): Promise<FileContent> {
  const fail = (what: string, fix: string) => usageError(`${option}: ${what}`, { position: { file: path }, fix });
  const extension = formatExtension(path);
  const format = extension.replace(/\.gz$/, "");
  const reader = extension === ".parquet.gz" ? undefined : readers[format];
  if (!reader) {
    const what = `${extension || "a name without extension"} is not a format that is read here`;
    throw fail(what, "give a .jsonl, .json, .csv or .parquet file; the first three also as .gz");
  }
  const stored = readBytes(path, fail);
  const bytes = extension === format ? stored : decompress(stored, fail);
  if (bytes.length === 0) throw fail("this file is empty", "give a file with at least one row");
  try {
    return await reader(bytes.indexOf(byteOrderMark) === 0 ? bytes.subarray(byteOrderMark.length) : bytes);
  } catch (error) {
    throw fail(messageOf(error), "make the file anew, or fetch it again");
  }
}

type Fail = (what: string, fix: string) => Error;

function readBytes(path: string, fail: Fail): Buffer {
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) throw fail("this file does not exist", "the path is taken relative to the recipe's folder");
  if (found.isDirectory()) throw fail("this is a directory", "name the file in it");
  try {
    return readFileSync(path);
  } catch (error) {
    throw fail(`this file cannot be read: ${messageOf(error)}`, "check its permissions");
  }
}

function decompress(bytes: Buffer, fail: Fail): Buffer {
  if (bytes.length === 0) return bytes;
  try {
    return gunzipSync(bytes);
  } catch (error) {
    throw fail(`this is not a whole gzip file: ${messageOf(error)}`, "make the file anew, or fetch it again");
  }
}
