import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { type DatasetOptions, readDataset } from "./dataset.ts";
import { errorOf } from "./fixtures/reading.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-dataset-"));
afterAll(() => rmSync(folder, { recursive: true }));

function write(content: string | Uint8Array, name = "rows.jsonl"): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

const read = async (content: string | Uint8Array, options: Partial<DatasetOptions> = {}, name?: string) =>
  (await readDataset(write(content, name), { inputKey: "q", ...options })).rows;

describe("rows", () => {
  test("a text becomes a user message; label, reply and the whole object come along", async () => {
    const [row] = await read('{"q": "2+2", "a": {"value": 4}, "r": "four"}', { labelKey: "a", outputKey: "r" });
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

  test("a JSON list, and the first rows of a file only", async () => {
    const list = await read('[\n {"q": "a"},\n {"q": "b"}]', {}, "list.json");
    expect(list.map(({ id }) => id)).toEqual(["list:1", "list:2"]);
    expect(await read('{"q":"a"}\n{"q":"b"}\n', { maxSamples: 1 })).toHaveLength(1);
  });

  test("a message's null is a field that it does not have", async () => {
    const call = { function: { name: "f", arguments: { x: null } } };
    const messages = [
      { role: "user", content: "a", tool_calls: null, name: null },
      { role: "assistant", content: null, tool_calls: [call] },
    ];
    const [row] = await read(JSON.stringify({ q: messages }));
    expect(row!.messages).toEqual([{ role: "user", content: "a" }, messages[1]]);
    expect(row!.fields).toEqual({ q: messages });
  });

  test("the fingerprint follows the rows", async () => {
    const fingerprint = async (text: string) => (await readDataset(write(text), { inputKey: "q" })).fingerprint;
    expect(await fingerprint('{"q":"a"}')).toBe(await fingerprint('{ "q": "a" }\r\n'));
    expect(await fingerprint('{"q":"a"}')).not.toBe(await fingerprint('{"q":"b"}'));
  });
});

describe("bytes", () => {
  // Case J1.
  test("line separators of other alphabets, emoji, CRLF, a BOM, no last newline are data or harmless", async () => {
    const text = "a\u2028b\u2029c\u0085d \u{1f600} é";
    const lines = `\ufeff{"q":"${text}"}\r\n\n{"q":"x\\u000by"}\r\n{"q":"last"}`;
    const rows = await read(lines);
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
    ["a raw vertical tab", '{"q":"a\u000bb"}', 'invalid character: "\\"a\\u000bb\\""'],
    ["an integer beyond doubles", '{"q":"a","x":9007199254740993}', "9007199254740993 does not fit a double"],
    ["a number beyond doubles", '{"q":"a","x":1e999}', "1e999 does not fit a double"],
    ["a leading zero", '{"q":"a","x":01}', 'comma expected: "1"'],
    ["a trailing comma", '{"q":"a",}', 'property name expected: "}"'],
    ["a bad escape", '{"q":"\\x41"}', 'invalid escape character: "\\"\\\\x41\\""'],
  ])("%s is an error with file and line", async (_, line, message) => {
    const error = await errorOf(read(`{"q":"fine"}\n${line}\n`));
    expect(error.position).toEqual({ file: join(folder, "rows.jsonl"), line: 2 });
    expect(error.message).toContain(message);
  });

  test("bytes that are not UTF-8 are an error with their line", async () => {
    const bytes = Buffer.concat([Buffer.from('{"q":"a"}\n{"q":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}\n')]);
    expect((await errorOf(read(bytes))).format()).toContain("rows.jsonl:2 not a row: its bytes are not UTF-8");
  });

  // Case J1: what JSON.parse, an independent reader, makes of a row.
  test("any JSON object comes back equal", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.dictionary(fc.string({ unit: "grapheme" }), fc.jsonValue({ noUnicodeString: false })),
        async (fields) => {
          const text = JSON.stringify({ ...fields, q: "x" });
          fc.pre(!/\\u[dD][89a-fA-F]/.test(text));
          const integers = text.match(/-?\d{16,}/g);
          fc.pre(!integers?.some((source) => BigInt(source) !== BigInt(Number(source))));
          expect((await read(text))[0]!.fields).toEqual(JSON.parse(text));
        },
      ),
    );
  });

  // Case J5.
  test("a tool call's 1.0 and 1e-07 keep their text", async () => {
    const call = (input: string) => `{"function":{"name":"f","arguments":${input}}}`;
    const line = (input: string) => `{"q":[{"role":"assistant","content":null,"tool_calls":[${call(input)}]}]}`;
    const argumentsOf = async (input: string) =>
      (await read(line(input)))[0]!.messages[0]!.tool_calls![0]!.function.arguments;
    expect(await argumentsOf('{"x":1.0,"y":[1e-07, "a, b"]}')).toBe('{"x": 1.0, "y": [1e-07, "a, b"]}');
    expect(await argumentsOf('"{\\"x\\":1.0}"')).toBe('{"x":1.0}');
    expect(await argumentsOf('{"x":1,"y":0.5}')).toEqual({ x: 1, y: 0.5 });
  });
});

describe("bad rows", () => {
  // Case J3.
  test.each([
    ["not JSON", "sort 1", "not a row: sort is not JSON"],
    ["truncated", '{"q":"a', 'not a row: unexpected end of string: "\\"a"'],
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
  ])("%s", async (_, line, message) => {
    const error = await errorOf(read(`{"q":"fine"}\n${line}`));
    expect(error.position).toEqual({ file: join(folder, "rows.jsonl"), line: 2 });
    expect(error.message).toContain(message);
  });

  // Case J3.
  test("the options are named as the recipe calls them", async () => {
    const wanted = { labelKey: "answer", option: "eval.dataset" };
    expect((await errorOf(read('{"q":"a"}', wanted))).message).toContain('"answer", which data.label_key names');
    expect((await errorOf(read("", wanted))).format()).toContain("rows.jsonl eval.dataset: this file is empty");
    expect((await errorOf(read('{"q":"a","r":""}', { outputKey: "r" }))).message).toContain("it is empty");
  });

  // Case J3.
  test("a file that is absent, a directory, blank, of another kind or cut off", async () => {
    const of = async (path: string) => (await errorOf(readDataset(path, { inputKey: "q" }))).format();
    expect(await of(join(folder, "absent.jsonl"))).toContain(
      "absent.jsonl data.prompt_dataset: this file does not exist",
    );
    mkdirSync(join(folder, "directory.jsonl"));
    expect(await of(join(folder, "directory.jsonl"))).toContain("data.prompt_dataset: this is a directory");
    expect(await of(write("q", "rows.tsv"))).toContain(".tsv is not a format that is read here");
    expect(await of(write("\n \n"))).toContain("this file holds no row");
    expect(await of(write('[\n{"q":"a"},\n{"q":', "cut.json"))).toContain("cut.json:3 not a row: the JSON is cut off");
    expect(await of(write('{"q":"a"}', "object.json"))).toContain("object.json:1 not a row: expected a list");
    expect(await of(write("[]", "none.json"))).toContain("none.json data.prompt_dataset: this file holds no row");
  });

  // Cases J1, J3.
  test("the bad rows of a JSON list are all named, each by the line on which it begins", async () => {
    const list = '[\n{"q":"a"},\n{"q":"b",\n"x":9007199254740993},\n\n{"q":"\\ud800"}]';
    const { message } = await errorOf(read(list, {}, "rows.json"));
    expect(message.replaceAll(`${folder}/`, "").split("\n")).toEqual([
      "2 rows cannot be used:",
      "    rows.json:3 not a row: the number 9007199254740993 does not fit a double; write it as a string",
      "    rows.json:6 not a row: a lone surrogate in a string",
    ]);
  });

  test("one mistake in many rows is said once", async () => {
    expect((await errorOf(read('{"x":1}\n{"q":"a"}\n{"x":2}'))).format()).toContain(
      'rows.jsonl:1 no column "q", which data.input_key names; columns here: x; so in 2 rows',
    );
  });

  test("the first ten are reported at once", async () => {
    const error = await errorOf(read(Array.from({ length: 13 }, (_, i) => `{"x${i}":1}`).join("\n")));
    expect(error.message.split("\n")).toHaveLength(12);
    expect(error.message).toContain("13 rows cannot be used:");
    expect(error.message).toContain("rows.jsonl:10 no column");
    expect(error.message).toContain("and 3 more");
  });
});

describe("several files", () => {
  const make = (name: string, content: string) => {
    mkdirSync(join(folder, name, ".."), { recursive: true });
    return write(content, name);
  };
  const idsOf = async (paths: string[]) => (await readDataset(paths, { inputKey: "q" })).rows.map(({ id }) => id);
  const a = make("one/a.jsonl", '{"q":"a1"}\n{"q":"a2"}\n{"q":"a3"}');
  const b = make("one/b.csv", "q\nb1\nb2\n");

  test("lie one after another, each with at most max_samples rows", async () => {
    const { rows, mixture } = await readDataset([a, b], { inputKey: "q", maxSamples: 2, weights: [1, 3] });
    expect(rows.map(({ id, messages }) => [id, messages[0]!.content])).toEqual([
      ["a:1", "a1"],
      ["a:2", "a2"],
      ["b:1", "b1"],
      ["b:2", "b2"],
    ]);
    expect(mixture).toEqual({ sizes: [2, 2], weights: [1, 3] });
    expect((await readDataset(a, { inputKey: "q" })).mixture).toEqual({ sizes: [3], weights: null });
  });

  test("have ids of their own where they are called alike", async () => {
    const other = make("two/a.jsonl", '{"q":"c"}');
    expect(await idsOf([other, b])).toEqual(["a:1", "b:1", "b:2"]);
    expect(await idsOf([other, a])).toEqual(["two/a.jsonl:1", "one/a.jsonl:1", "one/a.jsonl:2", "one/a.jsonl:3"]);
    expect(await idsOf([make("one/b.json", '[{"q":"x"}]'), b])).toEqual(["b.json:1", "b.csv:1", "b.csv:2"]);
  });

  test("are each named once", async () => {
    await expect(readDataset([a, b, a], { inputKey: "q", option: "eval.dataset" })).rejects.toThrow(
      `eval.dataset names ${a} twice`,
    );
  });

  test("share one fingerprint: their order and weights count", async () => {
    const fingerprint = async (paths: string[], weights: number[] | null = null) =>
      (await readDataset(paths, { inputKey: "q", weights })).fingerprint;
    const all = [fingerprint([a]), fingerprint([a, b]), fingerprint([b, a]), fingerprint([a, b], [1, 2])];
    expect(new Set([...(await Promise.all(all)), await fingerprint([a, b], [2, 1])]).size).toBe(5);
  });

  // Case J3.
  test("are all looked at before the error is given", async () => {
    const paths = [join(folder, "absent.jsonl"), make("bad.csv", "x\n1\n"), a, make("bad.json", '[{"q":3},{"q":[]}]')];
    const error = await errorOf(readDataset(paths, { inputKey: "q" }));
    expect(error.format().replaceAll(`${folder}/`, "").split("\n")).toEqual([
      "absent.jsonl data.prompt_dataset: this file does not exist",
      "  fix: the path is taken relative to the recipe's folder",
      'bad.csv:2 no column "q", which data.input_key names; columns here: x',
      "bad.json:1 2 rows cannot be used:",
      "    bad.json:1 q (data.input_key) must be a text or a list of messages, it is a number",
      "    bad.json:1 q (data.input_key) is an empty conversation",
    ]);
  });
});
