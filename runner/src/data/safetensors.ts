/** Headers of safetensors files: 8 bytes of length (little-endian), then JSON. The native core maps the tensors. */
import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { fileError, messageOf } from "../errors.ts";
import { type Config, isObject } from "./config-json.ts";

const dtypes = new Set("F64 F32 F16 BF16 I64 U64 I32 U32 I16 U16 I8 U8 BOOL F8_E4M3 F8_E5M2".split(" "));

/** The format's own limit. */
const maxHeaderBytes = 100_000_000;

export interface SafetensorsEntry {
  name: string;
  dtype: string;
  shape: number[];
  /** From the file's start. */
  offset: number;
  bytes: number;
}

/** Every byte after it must belong to exactly one tensor. `dataOffset`: where they begin. */
export function readSafetensorsHeader(file: string) {
  const fd = openSync(file, "r");
  try {
    const fileBytes = fstatSync(fd).size;
    const length = Buffer.alloc(8);
    if (readSync(fd, length, 0, 8, 0) < 8) throw broken(file, `it has ${fileBytes} bytes, too few for a header`);
    const headerBytes = Number(length.readBigUInt64LE());
    if (headerBytes > maxHeaderBytes || 8 + headerBytes > fileBytes) {
      throw broken(file, `its header claims ${headerBytes} bytes, the file has ${fileBytes}`);
    }
    const json = Buffer.alloc(headerBytes);
    readSync(fd, json, 0, headerBytes, 8);
    const { __metadata__: metadata = {}, ...tensors } = parseHeader(file, json.toString("utf8"));
    const dataOffset = 8 + headerBytes;
    const entries = Object.entries(tensors).map(([name, value]) => readEntry(file, name, value, dataOffset));
    checkLayout(file, entries, dataOffset, fileBytes);
    return { metadata: metadata as Record<string, string>, entries, dataOffset };
  } finally {
    closeSync(fd);
  }
}

function parseHeader(file: string, json: string): Config {
  try {
    const header = JSON.parse(json);
    if (!isObject(header)) throw new Error("it is not an object");
    return header;
  } catch (error) {
    throw broken(file, `its header is not JSON: ${messageOf(error)}`);
  }
}

function readEntry(file: string, name: string, value: unknown, dataOffset: number): SafetensorsEntry {
  const { dtype, shape, data_offsets: range } = (value ?? {}) as Config;
  const isSize = (item: unknown) => Number.isSafeInteger(item) && (item as number) >= 0;
  const isSizes = (list: unknown): list is number[] => Array.isArray(list) && list.every(isSize);
  if (typeof dtype !== "string" || !isSizes(shape) || !isSizes(range) || range.length !== 2) {
    throw broken(file, `tensor ${name} has no proper dtype, shape and data_offsets`);
  }
  const [begin, end] = range as [number, number];
  if (!dtypes.has(dtype)) throw broken(file, `tensor ${name} has the unknown dtype ${dtype}`);
  // Its name tells the bits, but for BOOL (a byte).
  const bytes = shape.reduce((product, size) => product * size, Number(/\d+/.exec(dtype)?.[0] ?? 8) / 8);
  if (end - begin !== bytes) {
    throw broken(file, `tensor ${name} spans ${end - begin} bytes; ${dtype} [${shape.join(", ")}] takes ${bytes}`);
  }
  return { name, dtype, shape, offset: dataOffset + begin, bytes };
}

function checkLayout(file: string, entries: SafetensorsEntry[], dataOffset: number, fileBytes: number): void {
  let end = dataOffset;
  let previous = "the header";
  for (const { name, offset, bytes } of [...entries].sort((a, b) => a.offset - b.offset || a.bytes - b.bytes)) {
    if (offset < end) throw broken(file, `tensor ${name} overlaps ${previous}`);
    const gap = `${offset - end} bytes between ${previous} and tensor ${name} belong to no tensor`;
    if (offset > end) throw broken(file, gap);
    end = offset + bytes;
    previous = `tensor ${name}`;
  }
  if (fileBytes < end) throw broken(file, `it is cut off: it has ${fileBytes} bytes, its header describes ${end}`);
  if (fileBytes > end) throw broken(file, `${fileBytes - end} bytes after ${previous} belong to no tensor`);
}

function broken(file: string, why: string) {
  return fileError(file, `this safetensors file is broken: ${why}`, "fetch or write it again");
}

/** For float32 tensors in this order; its length is a multiple of 8. */
export function buildSafetensorsHeader(
  tensors: { name: string; shape: number[] }[],
  metadata: Record<string, string>,
): Uint8Array {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let begin = 0;
  for (const { name, shape } of tensors) {
    const end = begin + shape.reduce((product, size) => product * size, 4);
    header[name] = { dtype: "F32", shape, data_offsets: [begin, end] };
    begin = end;
  }
  const json = Buffer.from(JSON.stringify(header), "utf8");
  const padded = Math.ceil(json.length / 8) * 8;
  const bytes = Buffer.alloc(8 + padded, " ");
  bytes.writeBigUInt64LE(BigInt(padded), 0);
  json.copy(bytes, 8);
  return bytes;
}
