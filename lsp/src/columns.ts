import { closeSync, openSync, readSync, statSync } from "node:fs";
import { constants, gunzipSync } from "node:zlib";
import { formatExtension, readers } from "../../runner/src/data/dataset-files.ts";

/** Enough for some rows, little enough to read while a menu opens. */
const headBytes = 1024 * 1024;

/** The columns of a dataset file's first rows; none where it cannot be read. */
export async function columnsOf(path: string): Promise<string[]> {
  try {
    // To open a pipe is to wait for its writer.
    if (!statSync(path).isFile()) return [];
    if (path.endsWith(".parquet")) return await parquetColumns(path);
    const { rows } = await readers[formatExtension(path).replace(/\.gz$/, "")]!(headOf(path));
    return [...new Set(rows.slice(0, 100).flatMap(({ value }) => Object.keys(value ?? {})))];
  } catch {
    return [];
  }
}

/** Up to the end of a line, where the file goes on. */
function headOf(path: string): Buffer {
  const file = openSync(path, "r");
  try {
    const buffer = Buffer.alloc(headBytes);
    const bytes = buffer.subarray(0, readSync(file, buffer, 0, headBytes, 0));
    const unpacked = path.endsWith(".gz") ? gunzipSync(bytes, { finishFlush: constants.Z_SYNC_FLUSH }) : bytes;
    const head = unpacked.subarray(unpacked.subarray(0, 3).toString() === "\ufeff" ? 3 : 0);
    return bytes.length < headBytes ? head : head.subarray(0, head.lastIndexOf("\n") + 1);
  } finally {
    closeSync(file);
  }
}

/** They stand in the file's footer. */
async function parquetColumns(path: string): Promise<string[]> {
  const { asyncBufferFromFile, parquetMetadataAsync, parquetSchema } = await import("hyparquet");
  const metadata = await parquetMetadataAsync(await asyncBufferFromFile(path));
  return parquetSchema(metadata).children.map(({ element }) => element.name);
}
