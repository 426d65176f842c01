import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { decompress as decompressZstd } from "fzstd";
import { type FileMetaData, parquetMetadata, parquetRead, parquetSchema } from "hyparquet";
import { messageOf } from "../errors.ts";
import type { FileContent, FileRow, RowProblem } from "./dataset-files.ts";
import { parseJson } from "./json.ts";
import { checkCounts } from "./parquet-counts.ts";
import { decodeUtf8 } from "./utf8.ts";

/** Snappy comes with hyparquet. */
const compressors = {
  GZIP: (bytes: Uint8Array) => gunzipSync(bytes),
  BROTLI: (bytes: Uint8Array) => brotliDecompressSync(bytes),
  ZSTD: (bytes: Uint8Array, length: number) => decompressZstd(bytes, new Uint8Array(length)),
};
const codecs = ["UNCOMPRESSED", "SNAPPY", ...Object.keys(compressors)];

/** An error stands for its value until its row is known. */
function attempt(read: () => unknown): unknown {
  try {
    return read();
  } catch (error) {
    return new Error(messageOf(error));
  }
}

const parsers = {
  stringFromBytes: (bytes: Uint8Array) => attempt(() => decodeUtf8(Buffer.from(bytes))),
  jsonFromBytes: (bytes: Uint8Array) => attempt(() => parseJson(decodeUtf8(Buffer.from(bytes)))),
};

/** Values as JSON has them: structs are objects, dates and timestamps ISO 8601 texts. */
export async function readParquet(bytes: Buffer): Promise<FileContent> {
  const { table, names } = await readTable(bytes);
  const rows: FileRow[] = [];
  const problems: RowProblem[] = [];
  for (const [index, cells] of table.entries()) {
    const place = { number: index + 1, line: null };
    try {
      const value = Object.fromEntries(names.map((name, column) => [name, toColumn(name, cells[column])]));
      rows.push({ ...place, value });
    } catch (error) {
      problems.push({ ...place, message: messageOf(error) });
    }
  }
  return { rows, problems };
}

async function readTable(bytes: Buffer): Promise<{ table: unknown[][]; names: string[] }> {
  let metadata: FileMetaData;
  let names: string[];
  let table: unknown[][] = [];
  try {
    metadata = parquetMetadata(bytes, { geoparquet: false });
    names = parquetSchema(metadata).children.map(({ element }) => element.name);
    checkReadable(metadata, names);
    checkCounts(bytes, metadata, compressors);
    const onComplete = (rows: unknown[][]) => {
      table = rows;
    };
    const file = { byteLength: bytes.byteLength, slice: (start: number, end?: number) => copy(bytes, start, end) };
    await parquetRead({ file, metadata, compressors, parsers, geoparquet: false, onComplete });
  } catch (error) {
    if (error instanceof Unsupported) throw error;
    throw new Error(`this is not a whole Parquet file: ${messageOf(error)}`);
  }
  const wanted = Number(metadata.num_rows);
  if (table.length === wanted) return { table, names };
  throw new Error(`this is not a whole Parquet file: it holds ${table.length} rows of ${wanted}`);
}

function copy(bytes: Buffer, start: number, end?: number): ArrayBuffer {
  return Uint8Array.from(bytes.subarray(start, end)).buffer;
}

class Unsupported extends Error {}

function checkReadable({ row_groups: groups }: FileMetaData, names: string[]): void {
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new Unsupported(`two columns are called ${JSON.stringify(twice)}`);
  const used = groups.flatMap(({ columns }) => columns.map(({ meta_data: column }) => column?.codec ?? "UNCOMPRESSED"));
  const other = used.find((codec) => !codecs.includes(codec));
  if (other !== undefined) throw new Unsupported(`compressed with ${other}: write it with zstd, gzip or snappy`);
}

function toColumn(name: string, value: unknown): unknown {
  try {
    return toJson(value);
  } catch (error) {
    throw new Error(`column ${JSON.stringify(name)}: ${messageOf(error)}`);
  }
}

function toJson(value: unknown): unknown {
  if (value === undefined || value === null) return null;
  if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`${value} is not JSON`);
  if (typeof value === "bigint") return toNumber(value);
  if (typeof value !== "object") return value;
  if (value instanceof Error) throw value;
  if (value instanceof Date) return value.toISOString();
  if (value instanceof Uint8Array) throw new Error("bytes are not JSON; write them as a string");
  if (Array.isArray(value)) return value.map(toJson);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, toJson(item)]));
}

function toNumber(value: bigint): number {
  const number = Number(value);
  if (BigInt(number) === value) return number;
  throw new Error(`the number ${value} does not fit a double; write it as a string`);
}
