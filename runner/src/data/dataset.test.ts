import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { ExitCode, RunnerError } from "../errors.ts";
import { type DatasetOptions, readDataset } from "./dataset.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-dataset-"));
afterAll(() => rmSync(folder, { recursive: true }));

function write(content: string | Uint8Array, name = "rows.jsonl"): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

const read = (content: string | Uint8Array, options: Partial<DatasetOptions> = {}, name?: string) =>
  readDataset(write(content, name), { inputKey: "q", ...options }).rows;

function errorOf(action: () => unknown): RunnerError {
  try {
    action();
  } catch (error) {
    expect(error).toBeInstanceOf(RunnerError);
    return error as RunnerError;
  }
  throw new Error("expected an error");
}

describe("rows", () => {
  test("a text becomes a user message; label, reply and the whole object come along", () => {
    const [row] = read('{"q": "2+2", "a": {"value": 4}, "r": "four"}', { labelKey: "a", outputKey: "r" });
    expect(row).toEqual({
      id: "rows:1",
      messages: [
        { role: "user", content: "2+2" },
        { role: "assistant", content: "four" },
      ],
      label: { value: 4 },
      fields: { q: "2+2", a: { value: 4 }, r: "four" },
    });
  });

  test("a JSON list, and the first rows of a file only", () => {
    expect(read('[\n {"q": "a"},\n {"q": "b"}]', {}, "list.json").map(({ id }) => id)).toEqual(["list:1", "list:2"]);
    expect(read('{"q":"a"}\n{"q":"b"}\n', { maxSamples: 1 })).toHaveLength(1);
  });

  test("the fingerprint follows the rows", () => {
    const fingerprint = (text: string) => readDataset(write(text), { inputKey: "q" }).fingerprint;
    expect(fingerprint('{"q":"a"}')).toBe(fingerprint('{ "q": "a" }\r\n'));
    expect(fingerprint('{"q":"a"}')).not.toBe(fingerprint('{"q":"b"}'));
  });
});

describe("bytes", () => {
  // Case J1.
  test("line separators of other alphabets, emoji, CRLF, a BOM and a missing last newline are data or harmless", () => {
    const text = "a\u2028b\u2029c\u0085d \u{1f600} é";
    const lines = `\ufeff{"q":"${text}"}\r\n\n{"q":"x\\u000by"}\r\n{"q":"last"}`;
    const rows = read(lines);
    expect(rows.map((row) => row.messages[0]!.content)).toEqual([text, "x\u000by", "last"]);
    expect(rows.map((row) => row.id)).toEqual(["rows:1", "rows:3", "rows:4"]);
  });

  // Case J1.
  test.each([
    ["a lone surrogate", '{"q":"\\ud800"}', "a lone surrogate in a string"],
    ["NaN", '{"q":"a","x":NaN}', "NaN is not JSON"],
    ["-Infinity", '{"q":"a","x":-Infinity}', "-Infinity is not JSON"],
    ["a key twice", '{"q":"a","q":"b"}', 'the key "q" appears twice'],
    ["a nested key twice", '{"q":"a","x":[{"y":1,"y":1}]}', 'the key "y" appears twice'],
    ["a raw vertical tab", '{"q":"a\u000bb"}', "a raw control character U+000B"],
    ["an integer beyond doubles", '{"q":"a","x":9007199254740993}', "9007199254740993 does not fit a double"],
    ["a number beyond doubles", '{"q":"a","x":1e999}', "1e999 does not fit a double"],
    ["a leading zero", '{"q":"a","x":01}', "expected ',' or '}', found \"1\""],
    ["a trailing comma", '{"q":"a",}', 'expected a string, found "}"'],
    ["a bad escape", '{"q":"\\x41"}', "the escape \\x is not JSON"],
  ])("%s is an error with file and line", (_, line, message) => {
    const error = errorOf(() => read(`{"q":"fine"}\n${line}\n`));
    expect(error.position).toEqual({ file: join(folder, "rows.jsonl"), line: 2 });
    expect(error.message).toContain(message);
    expect(error.exitCode).toBe(ExitCode.usage);
  });

  test("bytes that are not UTF-8 are an error with their line", () => {
    const bytes = Buffer.concat([Buffer.from('{"q":"a"}\n{"q":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}\n')]);
    expect(errorOf(() => read(bytes)).format()).toContain("rows.jsonl:2 not a row: its bytes are not UTF-8");
  });

  // Case J1: what JSON.parse, an independent reader, makes of a row.
  test("any JSON object comes back equal", () => {
    fc.assert(
      fc.property(
        fc.dictionary(fc.string({ unit: "grapheme" }), fc.jsonValue({ noUnicodeString: false })),
        (fields) => {
          const text = JSON.stringify({ ...fields, q: "x" });
          fc.pre(!/\\u[dD][89a-fA-F]/.test(text));
          const integers = text.match(/-?\d{16,}/g);
          fc.pre(!integers?.some((source) => BigInt(source) !== BigInt(Number(source))));
          expect(read(text)[0]!.fields).toEqual(JSON.parse(text));
        },
      ),
    );
  });

  // Case J5.
  test("a tool call's 1.0 and 1e-07 keep their text", () => {
    const call = (input: string) => `{"function":{"name":"f","arguments":${input}}}`;
    const line = (input: string) => `{"q":[{"role":"assistant","content":null,"tool_calls":[${call(input)}]}]}`;
    const argumentsOf = (input: string) => read(line(input))[0]!.messages[0]!.tool_calls![0]!.function.arguments;
    expect(argumentsOf('{"x":1.0,"y":[1e-07, "a, b"]}')).toBe('{"x": 1.0, "y": [1e-07, "a, b"]}');
    expect(argumentsOf('"{\\"x\\":1.0}"')).toBe('{"x":1.0}');
    expect(argumentsOf('{"x":1,"y":0.5}')).toEqual({ x: 1, y: 0.5 });
  });
});

describe("bad rows", () => {
  // Case J3.
  test.each([
    ["not JSON", "sort 1", "not a row: sort is not JSON"],
    ["truncated", '{"q":"a', "not a row: the JSON is cut off inside a string"],
    ["cut off after a comma", '{"q":"a",', "not a row: the JSON is cut off"],
    ["a list", '["a"]', "a row is an object with named columns, this is a list"],
    ["null", "null", "a row is an object with named columns, this is null"],
    ["no such column", '{"x":1,"y":2}', 'no column "q", which data.input_key names; columns here: x, y'],
    ["a null column", '{"q":null}', 'column "q", which data.input_key names, is null'],
    ["an empty conversation", '{"q":[]}', "q (data.input_key) is an empty conversation"],
    ["an empty text", '{"q":""}', "q (data.input_key) is an empty text"],
    ["a number", '{"q":3}', "q (data.input_key) must be a text or a list of messages, it is a number"],
    [
      "an unknown role",
      '{"q":[{"role":"bot","content":"a"}]}',
      'message 0: unknown role "bot"; roles are system, user',
    ],
    ["no content", '{"q":[{"role":"user"}]}', "message 0: neither content nor tool_calls"],
    ["content parts", '{"q":[{"role":"user","content":[]}]}', "content must be a text or null, it is a list"],
    ["a broken call", '{"q":[{"role":"assistant","tool_calls":[{}]}]}', "tool_calls must be a list of {function"],
  ])("%s", (_, line, message) => {
    const error = errorOf(() => read(`{"q":"fine"}\n${line}`));
    expect(error.position).toEqual({ file: join(folder, "rows.jsonl"), line: 2 });
    expect(error.message).toContain(message);
  });

  // Case J3.
  test("the options are named as the recipe calls them", () => {
    const optionNames = { path: "eval.dataset", labelKey: "eval.label_key" };
    const wanted = { labelKey: "answer", optionNames };
    expect(errorOf(() => read('{"q":"a"}', wanted)).message).toContain('"answer", which eval.label_key names');
    expect(errorOf(() => read("", wanted)).format()).toContain("rows.jsonl eval.dataset: this file is empty");
    expect(errorOf(() => read('{"q":"a","r":""}', { outputKey: "r" })).message).toContain("it is empty");
  });

  // Case J3.
  test("a file that is absent, a directory, blank, of another kind or cut off", () => {
    const of = (path: string) => errorOf(() => readDataset(path, { inputKey: "q" })).format();
    expect(of(join(folder, "absent.jsonl"))).toContain("absent.jsonl data.prompt_dataset: this file does not exist");
    mkdirSync(join(folder, "directory.jsonl"));
    expect(of(join(folder, "directory.jsonl"))).toContain("data.prompt_dataset: this is a directory");
    expect(of(write("q", "rows.csv"))).toContain(".csv is not a format that is read here");
    expect(of(write("\n \n"))).toContain("this file holds no row");
    expect(of(write('[\n{"q":"a"},\n{"q":', "cut.json"))).toContain("cut.json:3 not a row: the JSON is cut off");
    expect(of(write('{"q":"a"}', "object.json"))).toContain("object.json:1 not a row: expected a list");
    expect(of(write("[]", "none.json"))).toContain("none.json data.prompt_dataset: this file holds no row");
  });

  test("the first ten are reported at once", () => {
    const error = errorOf(() => read(Array.from({ length: 13 }, () => "{}").join("\n")));
    expect(error.message.split("\n")).toHaveLength(12);
    expect(error.message).toContain("13 rows cannot be used:");
    expect(error.message).toContain("rows.jsonl:10 no column");
    expect(error.message).toContain("and 3 more");
  });
});
