import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import { buildSafetensorsHeader, readSafetensorsHeader } from "./safetensors.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-safetensors-"));
afterAll(() => rmSync(folder, { recursive: true }));

function write(header: unknown, dataBytes: number, headerBytes?: number): string {
  const json = Buffer.from(typeof header === "string" ? header : JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(headerBytes ?? json.length));
  const file = join(folder, "x.safetensors");
  writeFileSync(file, Buffer.concat([length, json, Buffer.alloc(dataBytes)]));
  return file;
}

const tensor = (begin: number, end: number, shape = [(end - begin) / 4], dtype = "F32") => ({
  dtype,
  shape,
  data_offsets: [begin, end],
});

describe("readSafetensorsHeader", () => {
  it("finds the values that transformers stored", () => {
    const file = fileURLToPath(new URL("fixtures/qwen3-tied/model.safetensors", import.meta.url));
    const { metadata, entries } = readSafetensorsHeader(file);
    expect(metadata).toEqual({ format: "pt" });
    const norm = entries.find(({ name }) => name === "model.norm.weight")!;
    expect(norm).toMatchObject({ dtype: "BF16", shape: [16], bytes: 32 });
    // A fresh norm is all ones: 0x3f80 in bfloat16.
    const bytes = readFileSync(file).subarray(norm.offset, norm.offset + norm.bytes);
    expect(bytes.toString("hex")).toBe("803f".repeat(16));
  });

  it.each<[string, unknown, number, number?]>([
    ["its header claims 400 bytes, the file has 70", { a: tensor(0, 8) }, 8, 400],
    ["tensor a spans 8 bytes; F32 [3] takes 12", { a: tensor(0, 8, [3]) }, 8],
    ["tensor a has the unknown dtype F31", { a: tensor(0, 8, [2], "F31") }, 8],
    ["tensor a has no proper dtype, shape and data_offsets", { a: { dtype: "F32", shape: [-2] } }, 8],
    ["tensor a has no proper dtype, shape and data_offsets", { a: null }, 8],
    ["tensor b overlaps tensor a", { a: tensor(0, 8), b: tensor(4, 12) }, 12],
    ["4 bytes between tensor a and tensor b belong to no tensor", { a: tensor(0, 8), b: tensor(12, 16) }, 16],
    ["it is cut off: it has 69 bytes, its header describes 70", { a: tensor(0, 8) }, 7],
    ["3 bytes after tensor a belong to no tensor", { a: tensor(0, 8) }, 11],
    ["its header is not JSON: it is not an object", "[1]", 0],
  ])("refuses a file: %s", (why, header, dataBytes, headerBytes) => {
    const file = write(header, dataBytes, headerBytes);
    const expected = { message: `this safetensors file is broken: ${why}`, position: { file }, exitCode: 2 };
    expect(() => readSafetensorsHeader(file)).toThrow(expect.objectContaining(expected));
  });

  it("refuses files without a whole header", () => {
    const file = join(folder, "short.safetensors");
    writeFileSync(file, "abc");
    expect(() => readSafetensorsHeader(file)).toThrow("it has 3 bytes, too few for a header");
    writeFileSync(file, "version https://git-lfs.github.com/spec/v1");
    expect(() => readSafetensorsHeader(file)).toThrow(/its header claims \d+ bytes, the file has 42/);
    expect(() => readSafetensorsHeader(write("{{", 0))).toThrow("its header is not JSON");
  });
});

describe("buildSafetensorsHeader", () => {
  it("reads back what it was given, aligned", () => {
    const names = fc.uniqueArray(
      fc.string({ minLength: 1 }).filter((name) => !/^(\d+|__.*__)$/.test(name)),
      {
        maxLength: 8,
      },
    );
    const shape = fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: 3 });
    const property = fc.property(names, fc.array(shape, { minLength: 8, maxLength: 8 }), (given, shapes) => {
      const tensors = given.map((name, i) => ({ name, shape: shapes[i]! }));
      const header = buildSafetensorsHeader(tensors, { format: "pt" });
      expect(header.length % 8).toBe(0);
      const bytes = tensors.reduce((sum, item) => sum + item.shape.reduce((a, b) => a * b, 4), 0);
      const file = join(folder, "built.safetensors");
      writeFileSync(file, Buffer.concat([header, Buffer.alloc(bytes)]));
      const { entries, metadata } = readSafetensorsHeader(file);
      expect(metadata).toEqual({ format: "pt" });
      expect(entries.map((entry) => ({ name: entry.name, shape: entry.shape }))).toEqual(tensors);
    });
    fc.assert(property, { numRuns: 60 });
  });
});
