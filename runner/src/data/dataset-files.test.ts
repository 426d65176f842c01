import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { RunnerError } from "../errors.ts";
import { readDataset } from "./dataset.ts";
import { errorOf, fixture } from "./fixtures/reading.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-formats-"));
afterAll(() => rmSync(folder, { recursive: true }));

function write(name: string, content: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

const columns = { inputKey: "q", labelKey: "a" };
const read = (path: string) => readDataset(path, columns);
/** By JSON.parse, which none of the readers uses. */
const expected = (name: string): Record<string, unknown>[] => JSON.parse(readFileSync(fixture(name), "utf8"));

interface Format {
  extension: string;
  /** Where the second row of a file stands in its messages. */
  second: string;
  /** Why a row whose column is null is refused. */
  hole: string;
  /** Why a file without rows is. */
  none: string;
  /** Why one cut off anywhere is; null where what is left may be a whole file, of fewer rows. */
  cut: RegExp | null;
}

const isNull = 'column "q", which data.input_key names, is null';
const noRow = "data.prompt_dataset: this file holds no row";
const formats: Format[] = [
  { extension: "jsonl", second: ":2 ", hole: isNull, none: "data.prompt_dataset: this file is empty", cut: null },
  { extension: "json", second: ":3 ", hole: isNull, none: noRow, cut: /not a row: |this file is empty/ },
  // CSV has no null: an empty cell is an empty text.
  { extension: "csv", second: ":3 ", hole: "q (data.input_key) is an empty text", none: noRow, cut: null },
  { extension: "parquet", second: " row 2: ", hole: isNull, none: noRow, cut: /not a whole Parquet file|is empty/ },
];
const gzipped = formats
  .filter(({ extension }) => extension !== "parquet")
  .map((format) => ({ ...format, extension: `${format.extension}.gz`, cut: /not a whole gzip file|is empty/ }));

describe.each([...formats, ...gzipped])("$extension", ({ extension, second, hole, none, cut }) => {
  const bytesOf = (name: string) => readFileSync(fixture(`${name}.${extension}`));

  // Case J1.
  test("texts that Python wrote come back equal", async () => {
    const { rows } = await read(fixture(`texts.${extension}`));
    expect(rows.map(({ fields }) => fields)).toEqual(expected("texts.json"));
    expect(rows.map(({ messages }) => messages[0]!.content)).toEqual(rows.map(({ fields }) => fields.q));
    expect(rows.map(({ id }) => id)).toEqual(rows.map((_, index) => `texts:${index + 1}`));
  });

  // Case J3.
  test("an absent column is named with those that are there", async () => {
    const reading = readDataset(fixture(`texts.${extension}`), { inputKey: "prompt" });
    expect((await errorOf(reading)).message).toContain(
      'no column "prompt", which data.input_key names; columns here: q, a',
    );
  });

  // Case J3.
  test("a row without its prompt is named by its place", async () => {
    const path = fixture(`hole.${extension}`);
    expect((await errorOf(read(path))).format()).toBe(`${path}${second}${hole}`);
  });

  // Case J1.
  test("a text that is not UTF-8 is named by its place", async () => {
    const path = fixture(`bytes.${extension}`);
    const { position, message } = await errorOf(read(path));
    const line = extension.startsWith("json") ? 2 : 3;
    expect(position).toEqual({ file: path, line: extension === "parquet" ? undefined : line });
    const where = extension === "parquet" ? 'row 2: column "q"' : "not a row";
    expect(message).toContain(`${where}: its bytes are not UTF-8`);
  });

  // Case J3.
  test("no rows, no bytes, no file, a directory", async () => {
    const of = async (path: string) => (await errorOf(read(path))).message;
    expect(await of(fixture(`none.${extension}`))).toBe(none);
    expect(await of(write(`empty.${extension}`, new Uint8Array()))).toContain("this file is empty");
    expect(await of(join(folder, `absent.${extension}`))).toContain("this file does not exist");
    mkdirSync(join(folder, `directory.${extension}`));
    expect(await of(join(folder, `directory.${extension}`))).toContain("this is a directory");
  });

  // Case J3.
  test("cut off anywhere: an error, or the first rows as they were", async () => {
    const whole = bytesOf("texts");
    const rows = expected("texts.json");
    await fc.assert(
      fc.asyncProperty(fc.nat(whole.length - 2), async (length) => {
        const path = write(`cut.${extension}`, whole.subarray(0, length));
        const result = await read(path).catch((error) => error);
        if (cut || result instanceof Error) {
          expect(result).toBeInstanceOf(RunnerError);
          expect(result.position.file).toBe(path);
          if (cut) expect(result.message).toMatch(cut);
        } else {
          const kept = result.rows.map(({ fields }: { fields: unknown }) => fields);
          // A last CSV row may end early within its last cell.
          const sure = extension === "csv" ? kept.slice(0, -1) : kept;
          expect(sure).toEqual(rows.slice(0, sure.length));
        }
      }),
      { numRuns: 60 },
    );
  });

  test("whatever its bytes are: rows, or an error of the user's with the file", async () => {
    const whole = bytesOf("texts");
    const flips = fc.array(fc.record({ at: fc.nat(whole.length - 1), byte: fc.nat(255) }), {
      minLength: 1,
      maxLength: 4,
    });
    await fc.assert(
      fc.asyncProperty(flips, async (changes) => {
        const bytes = Uint8Array.from(whole);
        for (const { at, byte } of changes) bytes[at] = byte;
        const path = write(`flipped.${extension}`, bytes);
        const result = await read(path).catch((error) => error);
        if (result instanceof Error) {
          expect(result).toBeInstanceOf(RunnerError);
          expect((result as RunnerError).position!.file).toBe(path);
        } else {
          expect(result.rows.length).toBeGreaterThan(0);
        }
      }),
      { numRuns: 60 },
    );
  });
});

// CSV is left out: its cells are texts, and have no lists.
test.each(["jsonl", "json", "jsonl.gz", "json.gz"])("values of every kind: %s", async (extension) => {
  const { rows } = await readDataset(fixture(`typed.${extension}`), { inputKey: "messages" });
  expect(rows.map(({ fields }) => fields)).toEqual(expected("typed.json"));
});

test("a file is read once while it stays as it is, and again once it has changed", async () => {
  const at = (seconds: number, row: string) => {
    const path = write("once.jsonl", Buffer.from(row));
    utimesSync(path, seconds, seconds);
    return path;
  };
  const fields = async (path: string) => (await read(path)).rows[0]!.fields;
  const first = await fields(at(1e9, '{"q":"a","a":1}'));
  // Of the same size and time as the file that was read: nobody reads this one.
  expect(await fields(at(1e9, '{"q":"b","a":2}'))).toBe(first);
  expect(await fields(at(1e9 + 1, '{"q":"b","a":2}'))).toEqual({ q: "b", a: 2 });
});

test("another ending is refused with the endings that are read", async () => {
  for (const name of ["rows.tsv", "rows", "rows.gz", "rows.parquet.gz", "rows.jsonl.bz2"]) {
    const { message, fix } = await errorOf(read(write(name, Buffer.from("q\n"))));
    expect(message).toMatch(/is not a format that is read here$/);
    expect(fix).toBe("give a .jsonl, .json, .csv or .parquet file; the first three also as .gz");
  }
});
