import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { readDataset } from "./dataset.ts";
import { readParquet } from "./dataset-parquet.ts";
import { errorOf, fixture } from "./fixtures/reading.ts";

const read = async (name: string) => readParquet(readFileSync(fixture(name)));
const values = async (name: string) => (await read(name)).rows.map(({ value }) => value as Record<string, unknown>);

interface Message {
  tool_calls?: unknown;
}

/** As Python wrote them, with the nulls of fields that a struct has and a message had not. */
const typed = JSON.parse(readFileSync(fixture("typed.json"), "utf8")).map((row: { messages: Message[] }) => ({
  ...row,
  messages: row.messages.map((message) => ({ tool_calls: null, ...message })),
}));

describe("what pyarrow writes", () => {
  const codecs = ["none", "snappy", "gzip", "zstd", "brotli"];
  const files = codecs.flatMap((codec) => [`typed-${codec}-1`, `typed-${codec}-2`]);

  // Case J1.
  test.each([...files, "typed-encodings"])("%s", async (name) => {
    expect(await values(`${name}.parquet`)).toEqual(typed);
  });

  test.each(codecs.slice(1))("many pages in several row groups: %s", async (codec) => {
    const rows = Array.from({ length: 1500 }, (_, i) => ({ q: `question ${i % 7} ${i}`, a: String(i % 5) }));
    expect(await values(`many-${codec}.parquet`)).toEqual(rows);
  });

  test("messages are rows' conversations, without the nulls of the struct", async () => {
    const { rows } = await readDataset(fixture("typed-snappy-1.parquet"), { inputKey: "messages" });
    const call = { function: { name: "add", arguments: '{"x": 1.0}' } };
    expect(rows[1]).toMatchObject({ id: "typed-snappy-1:2" });
    expect(rows[1]!.messages).toEqual([
      { role: "user", content: "two" },
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", content: "" },
    ]);
  });

  test("other columns become what JSON has", async () => {
    const [row] = await values("others.parquet");
    expect(Object.entries(row!)).toEqual([
      ["q", "a"],
      ["large_string", "b"],
      ["string_view", "c"],
      ["categories", "d"],
      ["json", { x: [1] }],
      ["int8", -8],
      ["uint64", 2 ** 53],
      ["half", 1.5],
      ["single", 0.5],
      ["decimal", -12.5],
      ["date", "2024-02-29T00:00:00.000Z"],
      ["milliseconds", "2024-02-29T03:04:05.678Z"],
      ["microseconds", "2024-02-29T03:04:05.678Z"],
      ["nanoseconds", "2024-02-29T03:04:05.678Z"],
      ["map", { k: 1 }],
      ["__proto__", "e"],
      ["dotted.name", "f"],
    ]);
  });
});

describe("damage", () => {
  const damaged = (name: string, changes: [number, number][]) => {
    const bytes = readFileSync(fixture(name));
    for (const [offset, byte] of changes) bytes[offset] = byte;
    return readParquet(bytes);
  };
  const wholeRun: [number, number][] = [0xfe, 0xff, 0xff, 0xff, 0x0f].map((byte, index) => [294 + index, byte]);

  // The first three filled the memory, or never came to an end, before counts were checked.
  test.each<[string, string, [number, number][], string]>([
    ["a run of 2^31 - 1 levels", "texts.parquet", wholeRun, "a run of 2147483647 values where 15 are left"],
    ["levels of no length", "many-gzip.parquet", [[7325, 134]], "a page has false counts: 100, NaN, 1347, 44, 44"],
    ["a page header of no lengths", "many-zstd.parquet", [[1681, 23]], "a page has false counts: 64, NaN, NaN, 77, 77"],
    ["a column without its pages", "texts.parquet", [[260, 85]], "has 15 values by its footer, 0 by its pages, in 15"],
  ])("%s is said at once", async (_, name, changes, message) => {
    await expect(damaged(name, changes)).rejects.toThrow("this is not a whole Parquet file: ");
    await expect(damaged(name, changes)).rejects.toThrow(message);
  });

  test("every byte of a file changed: rows or one error", async () => {
    const whole = readFileSync(fixture("texts.parquet"));
    for (const [offset, byte] of whole.entries()) {
      const result = await damaged("texts.parquet", [[offset, byte ^ 0x80]]).catch((error: Error) => error.message);
      if (typeof result === "string") expect(result).not.toBe("");
      else expect(result.rows.length + result.problems.length).toBeGreaterThan(0);
    }
  });

  test("several bytes of any file changed, and its end cut off: rows or one error", async () => {
    const names = ["typed-none-2", "typed-gzip-1", "typed-zstd-2", "typed-encodings", "many-snappy", "many-brotli"];
    const change = fc.record({ at: fc.double({ min: 0, max: 0.999, noNaN: true }), byte: fc.nat(255) });
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...names),
        fc.array(change, { minLength: 1, maxLength: 4 }),
        fc.option(fc.double({ min: 0, max: 1, noNaN: true }), { freq: 5 }),
        async (name, changes, cut) => {
          const bytes = readFileSync(fixture(`${name}.parquet`));
          for (const { at, byte } of changes) bytes[Math.floor(at * bytes.length)] = byte;
          const kept = bytes.subarray(0, Math.ceil((cut ?? 1) * bytes.length));
          const result = await readParquet(kept).catch((error) => error);
          if (!(result instanceof Error)) expect(result.rows.length + result.problems.length).toBeGreaterThan(0);
          else expect(result.message).toMatch(/^(this is not a whole Parquet file: |compressed with|two columns)./);
        },
      ),
      { numRuns: 200 },
    );
  });
});

describe("what cannot be used", () => {
  // Case J1.
  test("is named by row and column", async () => {
    const { rows, problems } = await read("unusable.parquet");
    expect(rows.map(({ number }) => number)).toEqual([1]);
    expect(problems.map(({ number, message }) => [number, message])).toEqual([
      [2, 'column "integer": the number 9007199254740993 does not fit a double; write it as a string'],
      [3, 'column "unsigned": the number 18446744073709551615 does not fit a double; write it as a string'],
      [4, 'column "float": NaN is not JSON'],
      [5, 'column "float": -Infinity is not JSON'],
      [6, 'column "bytes": bytes are not JSON; write them as a string'],
      [7, 'column "nested": the number 1152921504606846977 does not fit a double; write it as a string'],
      [8, 'column "json": NaN is not JSON'],
    ]);
    const { position, message } = await errorOf(readDataset(fixture("unusable.parquet"), { inputKey: "q" }));
    expect(position).toEqual({ file: fixture("unusable.parquet") });
    expect(message).toContain(`7 rows cannot be used:\n    ${fixture("unusable.parquet")} row 2: column "integer"`);
  });

  test("as a whole is said at once", async () => {
    const of = async (name: string) => (await errorOf(readDataset(fixture(name), { inputKey: "q" }))).message;
    expect(await of("twice.parquet")).toBe('data.prompt_dataset: two columns are called "q"');
    expect(await of("lz4.parquet")).toBe(
      "data.prompt_dataset: compressed with LZ4_RAW: write it with zstd, gzip or snappy",
    );
  });
});
