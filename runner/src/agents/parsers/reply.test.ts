import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { ToolSchema } from "../../data/chat-template.ts";
import { chooseFormat, type ReplyFormat } from "./formats.ts";
import { parseReply as parse } from "./reply.ts";

const parseReply = (text: string, format: ReplyFormat, tools: ToolSchema[] | null = []) => parse(text, format, tools);

/** A format by words that only its own templates contain. */
const signs = {
  hermes: "<tool_call>",
  "qwen-xml": "<tool_call><function=",
  glm: "<tool_call><arg_key>",
  deepseek: "<｜tool▁calls▁begin｜>",
  mistral: "[TOOL_CALLS]",
  pythonic: "[func_name1(",
  "llama-json": '{"name": "f", "parameters": {}}',
  plain: "",
};

function format(name: keyof typeof signs, thinks = false): ReplyFormat {
  const chosen = chooseFormat(signs[name] + (thinks ? "</think>" : ""));
  expect(chosen.name).toBe(name);
  return chosen;
}

const call = (name: string, input: string) => ({ type: "function", function: { name, arguments: input } });
const tool = (name: string, properties: object) => {
  return { type: "function", function: { name, parameters: { type: "object", properties } } };
};

// Each layout as its vendor documents it and as vLLM's tool parsers read it.
const replies: [keyof typeof signs, string, string | null, [string, string][]][] = [
  [
    "hermes",
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 1.0}}\n</tool_call>',
    "Let me see.",
    [["get_weather", '{"city": "Paris", "days": 1.0}']],
  ],
  [
    "hermes",
    '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n' +
      '<tool_call>\n{"arguments":{"x":[1e-07]},"name":"b"}\n</tool_call>',
    null,
    [
      ["a", "{}"],
      ["b", '{"x":[1e-07]}'],
    ],
  ],
  ["hermes", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1.0}"}</tool_call>', null, [["a", '{"x": 1.0}']]],
  [
    "qwen-xml",
    "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n" +
      "one\ntwo\n</parameter>\n<parameter=mode>\n7\n</parameter>\n<parameter=force>\nTrue\n</parameter>\n" +
      '<parameter=tags>\n["x", 1.0]\n</parameter>\n</function>\n</tool_call>',
    null,
    [["write", '{"path": "a.txt", "lines": "one\\ntwo", "mode": 7, "force": true, "tags": ["x", 1.0]}']],
  ],
  ["qwen-xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>", null, [["now", "{}"]]],
  [
    "glm",
    "I look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n" +
      "<arg_key>days</arg_key>\n<arg_value>1.0</arg_value>\n</tool_call>",
    "I look.",
    [["get_weather", '{"city": "Paris", "days": 1.0}']],
  ],
  [
    "deepseek",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n" +
      '{"a": 2.0, "b": 2}\n```<｜tool▁call▁end｜>\n' +
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```" +
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    null,
    [
      ["add", '{"a": 2.0, "b": 2}'],
      ["now", "{}"],
    ],
  ],
  [
    "deepseek",
    'Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 2.0}' +
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "Yes.",
    [["add", '{"a": 2.0}']],
  ],
  [
    "mistral",
    '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1.0}, "id": "Abc123xyz"}]',
    null,
    [["add", '{"a": 1.0}']],
  ],
  [
    "mistral",
    'Sure.[TOOL_CALLS]add[CALL_ID]9AbCdEfGh[ARGS]{"a": 1.0}[TOOL_CALLS]now{}',
    "Sure.",
    [
      ["add", '{"a": 1.0}'],
      ["now", "{}"],
    ],
  ],
  [
    "pythonic",
    "[get_weather(city='San Francisco, \"SF\"', days=1.0), add(a=[1, -2.50], b={'k': None}, c=True), now()]",
    null,
    [
      ["get_weather", '{"city": "San Francisco, \\"SF\\"", "days": 1.0}'],
      ["add", '{"a": [1, -2.50], "b": {"k": null}, "c": true}'],
      ["now", "{}"],
    ],
  ],
  [
    "pythonic",
    "<|python_start|>[say(text='it\\'s\\n\\u00e9')]<|python_end|>",
    null,
    [["say", '{"text": "it\'s\\né"}']],
  ],
  ["llama-json", '<|python_tag|>{"name": "add", "parameters": {"a": 1.0}}', null, [["add", '{"a": 1.0}']]],
  [
    "llama-json",
    '{"name": "add", "parameters": {"a": "}; {"}}; {"name": "now", "parameters": {}}',
    null,
    [
      ["add", '{"a": "}; {"}'],
      ["now", "{}"],
    ],
  ],
  [
    "llama-json",
    '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
    null,
    [
      ["add", '{"a": 1}'],
      ["now", "{}"],
    ],
  ],
];

describe("parseReply", () => {
  // case J5: numbers keep their text
  it.each(replies)("reads %s: %s", (name, text, content, calls) => {
    const reply = parseReply(text, format(name));
    const wanted = calls.map(([called, input]) => call(called, input));
    expect([reply.content, reply.toolCalls, reply.reasoning]).toEqual([content, wanted, null]);
  });

  it("takes the arguments of a JSON format as the text that was sampled", () => {
    const input = '{ "a" :1.0,\t"b": 12345678901234567890, "c": "\\u0041", "arguments": {"a": 1E2} }';
    const { toolCalls } = parseReply(`<tool_call>{"name": "f", "arguments": ${input}}</tool_call>`, format("hermes"));
    expect(toolCalls).toEqual([call("f", input)]);
  });

  it("asks the tool whether an unquoted value is text", () => {
    const tools = [tool("pay", { code: { type: "string" }, sum: { type: "number" } })];
    const text =
      "<tool_call>pay\n<arg_key>code</arg_key>\n<arg_value>007</arg_value>\n" +
      "<arg_key>sum</arg_key>\n<arg_value>7</arg_value></tool_call>";
    expect(parseReply(text, format("glm"), tools).toolCalls).toEqual([call("pay", '{"code": "007", "sum": 7}')]);
    const xml =
      "<tool_call><function=pay><parameter=code>12</parameter><parameter=sum>12</parameter></function></tool_call>";
    expect(parseReply(xml, format("qwen-xml"), tools).toolCalls).toEqual([call("pay", '{"code": "12", "sum": 12}')]);
  });

  it.each([
    ["hermes", "<tool_call>{not json}</tool_call>"],
    ["hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}'],
    ["hermes", '<tool_call>{"name": "f"}</tool_call>'],
    ["hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'],
    ["hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'],
    ["hermes", '<tool_call>{"name": "f", "arguments": {}, "note": "lost?"}</tool_call>'],
    ["hermes", '<tool_call>{"name": "f", "arguments": "text"}</tool_call>'],
    ["qwen-xml", "<tool_call><function=f><parameter=a>1</function></tool_call>"],
    ["qwen-xml", "<tool_call><function=f>stray<parameter=a>1</parameter></function></tool_call>"],
    ["glm", "<tool_call>two words<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"],
    ["deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{bad"],
    ["deepseek", "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"],
    ["mistral", "[TOOL_CALLS] []"],
    ["mistral", '[TOOL_CALLS]f{"a": 1} and more'],
    ["pythonic", "[f(1)]"],
    ["pythonic", "[f(a=g(b=1))]"],
    ["pythonic", "[1, 2]"],
    ["pythonic", "[]"],
    ["pythonic", "f(a=1)"],
    ["llama-json", '{"name": "Ada", "age": 36}'],
    ["llama-json", "{}"],
    ["plain", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'],
  ] as const)("leaves what is malformed in the content: %s %s", (name, text) => {
    const reply = parseReply(text, format(name));
    expect([reply.content, reply.toolCalls]).toEqual([text, []]);
  });

  // case A7: marks that parsed to no call are counted
  it("keeps a good call beside a bad one, and counts the mark that led to none", () => {
    const text = '<tool_call>oops<tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>{]</tool_call>';
    const reply = parseReply(text, format("hermes"));
    expect(reply.toolCalls).toEqual([call("f", "{}")]);
    expect([reply.content, reply.unread]).toEqual(["<tool_call>oops <tool_call>{]</tool_call>", 2]);
  });
});

describe("reasoning", () => {
  it.each([
    ["<think>\nI add.\n</think>\n\nFive.", false, "I add.", "Five."],
    ["I add.\n</think>\n\nFive.", true, "I add.", "Five."],
    ["I add.</think>Five.", false, "I add.", "Five."],
    ["<think>\n\n</think>\n\nFive.", false, null, "Five."],
    ["<think>cut o", false, "cut o", ""],
    ["cut o", true, "cut o", ""],
    ["Five.", false, null, "Five."],
    [" Five.\n", false, null, " Five.\n"],
  ])("of %j, opened by the template: %s", (text, opensThink, reasoning, content) => {
    const reply = parseReply(text, { ...format("hermes", true), opensThink });
    expect([reply.reasoning, reply.content]).toEqual([reasoning, content]);
  });

  it("is before calls, whose marks inside it are no calls", () => {
    const text =
      '<think>maybe <tool_call>{"name": "g", "arguments": {}}</tool_call></think>\n' +
      '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
    const reply = parseReply(text, format("hermes", true));
    expect(reply.reasoning).toBe('maybe <tool_call>{"name": "g", "arguments": {}}</tool_call>');
    expect([reply.content, reply.toolCalls]).toEqual([null, [call("f", "{}")]]);
  });

  it("is apart from a call that nobody asked for, which is text", () => {
    const call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
    const { reasoning, content, toolCalls, unread } = parseReply(
      `<think>a</think>\n${call}`,
      format("hermes", true),
      null,
    );
    expect([reasoning, content, toolCalls, unread]).toEqual(["a", call, [], 0]);
    expect(parseReply(` ${call}`, format("hermes", true), null).content).toBe(` ${call}`);
  });

  it("is content to a template that does not know it", () => {
    expect(parseReply("<think>a</think>b", format("hermes"))).toMatchObject({
      reasoning: null,
      content: "<think>a</think>b",
    });
  });
});

describe("any text (property)", () => {
  const pieces = [
    ..."<tool_call> </tool_call> <function=f> </function> <parameter=a> </parameter> <arg_key> </arg_key>".split(" "),
    ..."<arg_value> </arg_value> [TOOL_CALLS] [ARGS] <think> </think> <|python_tag|> <|python_start|>".split(" "),
    ...["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
    ...["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    ...[
      "function",
      "\n```json\n",
      "\n```",
      '{"name": "f", "arguments": {"a": 1.0}}',
      '{"name": "g", "parameters": {}}',
    ],
    ...["[f(a='b')]", "{", "}", "[", "]", '"', "'", "\\", "(", ")", "=", ",", ":", ";", " ", "\n", "None", "-1.5e3"],
  ];
  const piece = fc.oneof(fc.constantFrom(...pieces), fc.string({ unit: "binary" }), fc.stringMatching(/^[a-z]{3,8}$/));
  const text = fc.array(piece, { maxLength: 24 }).map((parts) => parts.join(""));
  const formats = Object.keys(signs).flatMap((name) => [false, true].map((thinks) => ({ name, thinks })));

  it("is taken, and nothing of it is lost: words are in the content, the reasoning or a call", () => {
    fc.assert(
      fc.property(text, fc.constantFrom(...formats), fc.boolean(), (said, { name, thinks }, opensThink) => {
        const chosen = { ...format(name as keyof typeof signs, thinks), opensThink: thinks && opensThink };
        const { content, reasoning, toolCalls } = parseReply(said, chosen);
        if (toolCalls.length === 0 && reasoning === null && !thinks) expect(content).toBe(said);
        for (const { function: called } of toolCalls) expect(() => JSON.parse(called.arguments)).not.toThrow();
        const kept = JSON.stringify([content, reasoning, toolCalls]).replaceAll("\\", "");
        for (const [word] of said.replaceAll(/<[^<>]*>|\\|json|function/g, " ").matchAll(/[a-z]{3,}/g)) {
          if (!["name", "arguments", "parameters"].includes(word)) expect(kept).toContain(word);
        }
      }),
      { numRuns: 3000 },
    );
  });

  it("gives the arguments of a call back letter by letter, whatever object they are", () => {
    const begin = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
    const layouts: [keyof typeof signs, (name: string, input: string) => string][] = [
      ["hermes", (name, input) => `<tool_call>\n{"name": "${name}", "arguments": ${input}}\n</tool_call>`],
      ["mistral", (name, input) => `[TOOL_CALLS]${name}[ARGS]${input}`],
      ["mistral", (name, input) => `[TOOL_CALLS][{"name": "${name}", "arguments": ${input}}]`],
      ["llama-json", (name, input) => `{"name": "${name}", "parameters": ${input}}`],
      ["deepseek", (name, input) => `${begin}${name}<｜tool▁sep｜>${input}<｜tool▁call▁end｜>`],
    ];
    const marks = /<\/?tool_call>|\[TOOL_CALLS\]|[<｜]/;
    const input = fc
      .tuple(fc.dictionary(fc.string({ unit: "grapheme" }), fc.jsonValue({ stringUnit: "grapheme" })), fc.nat(2))
      .map(([object, indent]) => JSON.stringify(object, null, indent).replace(/(?<=: ?\d+)(?=[,}\n])/g, ".0"))
      .filter((text) => !marks.test(text));
    fc.assert(
      fc.property(
        fc.constantFrom(...layouts),
        fc.stringMatching(/^[a-z]\w{0,9}$/),
        input,
        ([name, lay], tool, text) => {
          const { content, toolCalls } = parseReply(lay(tool, text), format(name));
          expect([content, toolCalls]).toEqual([null, [call(tool, text)]]);
        },
      ),
      { numRuns: 1000 },
    );
  });

  it("takes no longer than in proportion to its length, however often a mark repeats", () => {
    for (const name of Object.keys(signs) as (keyof typeof signs)[]) {
      for (const mark of pieces) {
        const long = mark.repeat(Math.ceil(200_000 / mark.length));
        const { content, reasoning, toolCalls } = parseReply(long, format(name, true));
        expect((content ?? "").length + (reasoning ?? "").length + toolCalls.length).toBeGreaterThan(0);
      }
    }
  });
});
