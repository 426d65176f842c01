import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Message } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import { ChatTemplate, type ToolSchema } from "./chat-template.ts";
import { encodeDemonstration } from "./demonstration.ts";
import { Tokenizer } from "./tokenizer.ts";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const folders = {
  quickstart: here("../../../recipes/quickstart/model"),
  bytelevel: here("fixtures/bytelevel"),
};

interface Vectors {
  vocabSize: number;
  encode: [string, number[]][];
  decode: [number[], string][];
  chats: {
    messages: Message[];
    tools: ToolSchema[] | null;
    addGenerationPrompt: boolean;
    text: string;
    ids: number[];
  }[];
}

/** What the Python originals give (fixtures/make_tokenizers.py). */
const vectors: Record<string, Vectors> = JSON.parse(readFileSync(here("fixtures/vectors.json"), "utf8"));
const scratch = mkdtempSync(join(tmpdir(), "molt-tokenizer-"));
afterAll(() => rmSync(scratch, { recursive: true }));

/** A copy of a tokenizer folder with some of its JSON changed. */
function variant(name: string, source: string, changes: Record<string, object>): string {
  const folder = join(scratch, name);
  cpSync(source, folder, { recursive: true });
  for (const [file, change] of Object.entries(changes)) {
    const path = join(folder, file);
    writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), ...change }));
  }
  return folder;
}

const errorOf = (promise: Promise<unknown>): Promise<RunnerError> =>
  promise.then(
    () => expect.unreachable("expected an error"),
    (error) => error as RunnerError,
  );

describe.each(Object.entries(folders))("%s, against the Python originals", (name, folder) => {
  const expected = vectors[name]!;
  let tokenizer: Tokenizer;
  beforeAll(async () => {
    tokenizer = await Tokenizer.load(folder);
  });

  test("texts to ids, alone and in a batch", async () => {
    expect(tokenizer.vocabSize).toBe(expected.vocabSize);
    for (const [text, ids] of expected.encode) expect(await tokenizer.encode(text), text).toEqual(ids);
    expect(await tokenizer.encodeRenderedBatch(expected.encode.map(([text]) => text))).toEqual(
      expected.encode.map(([, ids]) => ids),
    );
  });

  test("ids to texts, alone and in a batch", async () => {
    for (const [ids, text] of expected.decode) expect(await tokenizer.decode(ids)).toBe(text);
    expect(await tokenizer.decodeBatch(expected.decode.map(([ids]) => ids))).toEqual(
      expected.decode.map(([, text]) => text),
    );
  });

  // Case J5: among the conversations are calls with 1.0 and 1e-07.
  test("conversations to text and ids", async () => {
    expect(expected.chats.length).toBeGreaterThan(9);
    for (const { messages, tools, addGenerationPrompt, text, ids } of expected.chats) {
      const options = { tools: tools ?? undefined, addGenerationPrompt };
      expect(tokenizer.renderChat(messages, options)).toBe(text);
      expect(await tokenizer.encodeChat(messages, options)).toEqual(ids);
    }
  });
});

describe("special tokens", () => {
  test("the quickstart's ids, and what ends a turn", async () => {
    const tokenizer = await Tokenizer.load(folders.quickstart);
    const names = ["<pad>", "<bos>", "<user>", "<asst>", "<tool>", "<end>", " ", "~"];
    expect(names.map((token) => tokenizer.idOf(token))).toEqual([0, 1, 2, 3, 4, 5, 6, 100]);
    expect(tokenizer.idOf("<nothing>")).toBeNull();
    expect(tokenizer.textOf(5)).toBe("<end>");
    expect([tokenizer.bosTokenId, tokenizer.eosTokenIds, tokenizer.stopTokenIds]).toEqual([1, [5], [5]]);
  });

  test("the template's end of turn stops a turn beside the model's end of sequence", async () => {
    const folder = variant("eos", folders.bytelevel, { "tokenizer_config.json": { eos_token: "<|endoftext|>" } });
    const tokenizer = await Tokenizer.load(folder, { eosTokenIds: [0, 1] });
    expect(tokenizer.eosTokenIds).toEqual([0, 1]);
    expect(tokenizer.stopTokenIds).toEqual([0, 1, tokenizer.idOf("<|im_end|>")]);
  });

  // Case A6: prompts, demonstrations, and eval all go through `encodeChat` and `encodeRendered`.
  test("exactly one BOS, whoever writes it", async () => {
    const config = JSON.parse(readFileSync(join(folders.quickstart, "tokenizer_config.json"), "utf8"));
    const silent = config.chat_template.replace("{{ bos_token }}", "");
    const twice = `{{ bos_token }}${config.chat_template}`;
    const adds = {
      type: "TemplateProcessing",
      single: [{ SpecialToken: { id: "<bos>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
      pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 0 } }],
      special_tokens: { "<bos>": { id: "<bos>", ids: [1], tokens: ["<bos>"] } },
    };
    const cases = [
      { chat_template: config.chat_template, post_processor: null },
      { chat_template: config.chat_template, post_processor: adds },
      { chat_template: silent, post_processor: adds },
      { chat_template: silent, post_processor: null, add_bos_token: true },
      { chat_template: twice, post_processor: adds },
    ];
    const conversation: Message[] = [
      { role: "user", content: "ab" },
      { role: "assistant", content: "c" },
    ];
    for (const [index, { post_processor, ...change }] of cases.entries()) {
      const changes = { "tokenizer_config.json": change, "tokenizer.json": { post_processor } };
      const tokenizer = await Tokenizer.load(variant(`bos-${index}`, folders.quickstart, changes));
      const prompt = await tokenizer.encodeChat(conversation.slice(0, 1), { addGenerationPrompt: true });
      expect(prompt).toEqual([1, 2, 71, 72, 5, 3]);
      const { tokens, mask } = await encodeDemonstration(tokenizer, conversation);
      expect([...tokens]).toEqual([1, 2, 71, 72, 5, 3, 73, 5]);
      expect([...mask]).toEqual([0, 0, 0, 0, 0, 0, 1, 1]);
    }
  });

  test("a tokenizer without a BOS gets none", async () => {
    const tokenizer = await Tokenizer.load(folders.bytelevel);
    expect(tokenizer.bosTokenId).toBeNull();
    const [first] = await tokenizer.encodeChat([{ role: "user", content: "a" }]);
    expect(first).toBe(tokenizer.idOf("<|im_start|>"));
  });
});

describe("demonstrations", () => {
  // Case A2: the separator after an end of turn is there, and not trained.
  test("each assistant turn and its end are trained, the template's newline is context", async () => {
    const tokenizer = await Tokenizer.load(folders.bytelevel);
    const messages: Message[] = [
      { role: "user", content: "a" },
      { role: "assistant", content: "b" },
      { role: "tool", content: "c" },
      { role: "assistant", content: "d" },
    ];
    const { tokens, mask } = await encodeDemonstration(tokenizer, messages);
    expect(await tokenizer.decode([...tokens])).toBe(
      tokenizer.renderChat(messages).slice(0, -1), // the newline after the last end of turn teaches nothing
    );
    const trained = [...tokens].filter((_, i) => mask[i] === 1);
    expect(await tokenizer.decode(trained)).toBe("b<|im_end|>d<|im_end|>");
  });
});

describe("what cannot be used", () => {
  test("no folder, no tokenizer.json, a broken one", async () => {
    expect((await errorOf(Tokenizer.load(join(scratch, "absent")))).message).toBe(
      "this tokenizer folder does not exist",
    );
    expect((await errorOf(Tokenizer.load(scratch))).format()).toContain("no tokenizer.json\n  fix: save the tokenizer");
    const broken = variant("broken", folders.quickstart, {});
    writeFileSync(join(broken, "tokenizer.json"), "{}");
    expect((await errorOf(Tokenizer.load(broken))).format()).toContain("tokenizer.json this file cannot be read");
  });

  test("a tokenizer without a template names the folder and the key", async () => {
    const folder = variant("plain", folders.quickstart, { "tokenizer_config.json": { chat_template: undefined } });
    const error = await errorOf(Tokenizer.load(folder));
    expect(error).toBeInstanceOf(RunnerError);
    expect(error.format()).toContain(
      `${folder} this tokenizer has no chat template\n  fix: name a Jinja file with data.chat`,
    );
    const given = join(scratch, "given.jinja");
    writeFileSync(given, "{% for m in messages %}{{ m.content }}<end>{% endfor %}");
    const tokenizer = await Tokenizer.load(folder, { chatTemplate: given });
    expect(tokenizer.renderChat([{ role: "user", content: "x" }])).toBe("x<end>");
    expect((await errorOf(Tokenizer.load(folder, { chatTemplate: "none.jinja" }))).message).toContain("does not exist");
  });

  test("a named list of templates, and a file of its own", async () => {
    const list = [
      { name: "tool_use", template: "t" },
      { name: "default", template: "{{ messages[0].content }}" },
    ];
    const folder = variant("list", folders.quickstart, { "tokenizer_config.json": { chat_template: list } });
    expect((await Tokenizer.load(folder)).renderChat([{ role: "user", content: "x" }])).toBe("x");
    writeFileSync(join(folder, "chat_template.jinja"), "file {{ messages[0].content }}");
    expect((await Tokenizer.load(folder)).renderChat([{ role: "user", content: "x" }])).toBe("file x");
  });

  test.each([
    ["{% raw %}a{% endraw %}", "raw"],
    ["{%+ if true %}a{% endif %}", "Jinja that is not supported"],
    ["{{ [1] | sum }}", "the filter sum"],
    ["{{ [1] | batch(2) | list }}", "the filter batch"],
    ["{% if messages %}{{ messages[0].content.find('a') }}{% endif %}", "the method .find()"],
    ["{{ strftime_now('%d %A') }}", "%A in strftime_now"],
  ])("%s is refused at the start", (source, name) => {
    expect(() => new ChatTemplate(source, "t.jinja", {})).toThrow(name);
  });

  test("a conversation that the template refuses says why", async () => {
    const tokenizer = await Tokenizer.load(folders.quickstart);
    const render = () => tokenizer.renderChat([{ role: "system", content: "x" }]);
    expect(render).toThrow(
      "the chat template refuses this conversation: this template knows the roles user, assistant",
    );
  });
});

// Case J5, and templates that walk through arguments.
test("a template that needs a mapping gets one, a template that takes text gets the text", () => {
  const call = (input: string): Message[] => [
    { role: "assistant", content: null, tool_calls: [{ function: { name: "f", arguments: input } }] },
  ];
  const walks = new ChatTemplate(
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}" +
      "{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}",
    "t",
    {},
  );
  expect(walks.render(call('{"x": "a", "y": 2}'))).toBe("x=a;y=2;");
  const json = "{{ messages[-1].tool_calls[0].function.arguments | tojson }}";
  expect(new ChatTemplate(json, "t", {}).render(call('{"x": "a"}'))).toBe('{"x": "a"}');
  const text = "{% set a = messages[-1].tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}";
  expect(new ChatTemplate(text, "t", {}).render(call('{"x": 1.0}'))).toBe('{"x": 1.0}');
});
