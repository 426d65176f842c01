import { readFileSync, statSync } from "node:fs";
import { extname, resolve } from "node:path";
import { gunzipSync } from "node:zlib";
import { fileError, messageOf } from "../errors.ts";
import { readJsonLines, readJsonList } from "./dataset-json.ts";

export interface FileRow {
  /** From 1; in JSONL the line. */
  number: number;
  /** On which the row begins, from 1; null in a file without lines. */
  line: number | null;
  value: unknown;
}

/** Why a row, or the rest of the file, cannot be used. */
export interface RowProblem extends Omit<FileRow, "value"> {
  message: string;
}

export interface FileContent {
  rows: FileRow[];
  problems: RowProblem[];
}

type FormatReader = (bytes: Buffer) => FileContent | Promise<FileContent>;

const byteOrderMark = Buffer.from("\ufeff");

/** By extension; libraries load when needed. */
export const readers: Readonly<Record<string, FormatReader>> = {
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

type Fail = (what: string, fix: string) => Error;

/** What a check has read, for the run after it. By path, size, time of change. */
const contents = new Map<string, FileContent>();

/** In the format of its name's ending. `option`: the path's recipe key. */
export async function readDataFile(path: string, option: string): Promise<FileContent> {
  const fail: Fail = (what, fix) => fileError(path, `${option}: ${what}`, fix);
  const extension = formatExtension(path);
  const reader = extension === ".parquet.gz" ? undefined : readers[extension.replace(/\.gz$/, "")];
  if (!reader) {
    const what = `${extension || "a name without extension"} is not a format that is read here`;
    throw fail(what, "give a .jsonl, .json, .csv or .parquet file; the first three also as .gz");
  }
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) throw fail("this file does not exist", "the path is taken relative to the recipe's folder");
  if (found.isDirectory()) throw fail("this is a directory", "name the file in it");
  const key = `${resolve(path)} ${found.size} ${found.mtimeMs}`;
  const content = contents.get(key) ?? (await readContent(path, reader, fail));
  if (!contents.delete(key)) contents.set(key, content);
  return content;
}

async function readContent(path: string, reader: FormatReader, fail: Fail): Promise<FileContent> {
  const again = "make the file anew, or fetch it again";
  const attempt = async <T>(body: () => T | Promise<T>, what: string, fix = again): Promise<T> => {
    try {
      return await body();
    } catch (error) {
      throw fail(`${what}${messageOf(error)}`, fix);
    }
  };
  const stored = await attempt(() => readFileSync(path), "this file cannot be read: ", "check its permissions");
  const unpack = path.endsWith(".gz") && stored.length > 0;
  const bytes = unpack ? await attempt(() => gunzipSync(stored), "this is not a whole gzip file: ") : stored;
  if (bytes.length === 0) throw fail("this file is empty", "give a file with at least one row");
  const isMarked = bytes.subarray(0, byteOrderMark.length).equals(byteOrderMark);
  return attempt(() => reader(isMarked ? bytes.subarray(byteOrderMark.length) : bytes), "");
}
