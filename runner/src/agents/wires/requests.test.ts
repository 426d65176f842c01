import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { chatWire } from "./chat.ts";
import { completionsWire } from "./completions.ts";
import { messagesWire } from "./messages.ts";
import { responsesWire } from "./responses.ts";
import { type Wire, WireError } from "./types.ts";

const wires: Record<string, Wire> = {
  "/v1/chat/completions": chatWire,
  "/v1/messages": messagesWire,
  "/v1/messages/count_tokens": messagesWire,
  "/v1/responses": responsesWire,
};

function recording(name: string): { path: string; body: Record<string, unknown> } {
  return JSON.parse(readFileSync(new URL(`../fixtures/wires/${name}.json`, import.meta.url), "utf8"));
}

const parsed = (name: string) => {
  const { path, body } = recording(name);
  return wires[path]!.parse(body);
};

const system = (content: string) => ({ role: "system", content });
const user = (content: string) => ({ role: "user", content });
const called = (id: string, input: unknown) => ({
  role: "assistant",
  content: null,
  tool_calls: [{ id, type: "function", function: { name: "add", arguments: input } }],
});
const result = (id: string, content: string) => ({ role: "tool", tool_call_id: id, content });

describe("what real clients sent", () => {
  it("is taken, all of it", () => {
    const names = readdirSync(new URL("../fixtures/wires/", import.meta.url)).map((file) => file.replace(".json", ""));
    const ofWires = names.filter((name) => recording(name).path in wires);
    // The others are /tokenize, /v1/models and /inference/v1/generate.
    expect([ofWires.length, names.length]).toEqual([30, 33]);
    for (const name of ofWires) expect(parsed(name).messages.length).toBeGreaterThan(0);
  });

  it.each([
    ["openai-py-tools-01", [system("You are helpful."), user("2+3?")]],
    [
      "openai-py-tools-02",
      [system("You are helpful."), user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "5")],
    ],
    ["openai-py-parse-01", [system("You are helpful."), user("2+3?")]],
    ["openai-py-stream-01", [system("You are helpful."), user("2+3?")]],
    ["openai-py-stream-02", [system("You are helpful."), user("2+3?")]],
    ["openai-node-tools-01", [system("You are helpful."), user("2+3?")]],
    [
      "openai-node-tools-02",
      [system("You are helpful."), user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "5")],
    ],
    ["openai-node-stream-01", [system("You are helpful."), user("2+3?")]],
    ["openai-node-runtools-01", [system("You are helpful."), user("2+3?")]],
    [
      "openai-node-runtools-02",
      [system("You are helpful."), user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "4")],
    ],
    ["openai-agents-chat-01", [system("Use the tool."), user("2+3?")]],
    [
      "openai-agents-chat-02",
      [system("Use the tool."), user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "4.0")],
    ],
    ["openai-py-responses-01", [user("2+3?")]],
    ["openai-node-resp-01", [user("2+3?")]],
    ["openai-agents-responses-01", [system("Use the tool."), user("2+3?")]],
    [
      "openai-agents-responses-02",
      [system("Use the tool."), user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "4.0")],
    ],
    ["anthropic-node-01", [user("2+3?")]],
    ["anthropic-py-stream-01", [user("2+3?")]],
    ["anthropic-py-stream-02", [user("2+3?")]],
    ["anthropic-py-stream-03", [user("2+3?")]],
    ["anthropic-py-tools-01", [system("You are helpful."), user("2+3?")]],
    ["anthropic-py-tools-02", [user("2+3?"), called("toolu_1", { a: 2, b: 2 }), result("toolu_1", "5")]],
    ["vf014-tool-02", [user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "4")]],
    ["vf014-token-03", [user("2+3?"), called("call_1", '{"a": 2, "b": 2}'), result("call_1", "4")]],
    ["vf04-null-01", [user("What is 0+5?")]],
  ])("%s", (name, messages) => {
    const request = parsed(name);
    expect(request.messages).toEqual(messages);
    expect(request.model).toBe("policy");
    const tools = (recording(name).body.tools ?? []) as { name?: string; function?: { name: string } }[];
    expect(request.tools.map((tool) => (tool.function as { name: string }).name)).toEqual(
      tools.map((tool) => tool.name ?? tool.function!.name),
    );
  });

  it("with their limits, samples, streams and what the recipe overrides", () => {
    expect(parsed("openai-py-tools-01")).toMatchObject({
      n: 1,
      maxTokens: 64,
      logprobs: true,
      overridden: ["temperature"],
    });
    expect(parsed("openai-py-tools-02")).toMatchObject({ n: 2, maxTokens: null, logprobs: false, overridden: [] });
    expect(parsed("openai-py-stream-01")).toMatchObject({ stream: true, includeUsage: true });
    expect(parsed("openai-py-stream-02")).toMatchObject({ stream: true, includeUsage: false });
    expect(parsed("openai-py-parse-01")).toMatchObject({ stream: false, overridden: ["response_format"] });
    expect(parsed("vf04-null-01")).toMatchObject({ stream: true, includeUsage: true, maxTokens: 64 });
    expect(parsed("vf014-token-01")).toMatchObject({ logprobs: true, returnTokenIds: true });
    expect(parsed("anthropic-node-01")).toMatchObject({ stream: true, maxTokens: 64, showReasoning: false });
    expect(parsed("anthropic-py-stream-03")).toMatchObject({ stream: false, maxTokens: null });
  });

  it("with one form of a tool, whatever the wire", () => {
    const parameters = {
      type: "object",
      properties: { a: { type: "number" }, b: { type: "number" } },
      required: ["a", "b"],
    };
    const wanted = [{ type: "function", function: { name: "add", description: "add", parameters } }];
    expect(parsed("anthropic-py-tools-01").tools).toEqual(wanted);
    const { description: _, ...bare } = wanted[0]!.function;
    expect(parsed("openai-node-resp-01").tools).toEqual([{ type: "function", function: { ...bare, description: "" } }]);
    expect(parsed("openai-node-runtools-01").tools).toEqual([{ type: "function", function: bare }]);
  });
});

const chat = (message: object, more: object = {}) =>
  chatWire.parse({ model: "m", messages: [user("a"), message], ...more });
const messages = (message: object, more: object = {}) =>
  messagesWire.parse({ model: "m", max_tokens: 9, messages: [user("a"), message], ...more });
const responses = (items: object[], more: object = {}) => responsesWire.parse({ model: "m", input: items, ...more });

// case H4
describe("messages", () => {
  const use = (id: string) => ({ type: "tool_use", id, name: "add", input: { a: 1 } });
  const text = (said: string) => ({ type: "text", text: said, cache_control: { type: "ephemeral" } });

  it.each([
    [{ role: "user", content: "b" }, user("b")],
    [
      {
        role: "user",
        content: [
          { type: "text", text: "b" },
          { type: "text", text: "c" },
        ],
      },
      user("b\nc"),
    ],
    [{ role: "developer", content: "b" }, system("b")],
    [
      { role: "assistant", content: null },
      { role: "assistant", content: "" },
    ],
    [{ role: "assistant" }, { role: "assistant", content: "" }],
    [
      { role: "assistant", content: [{ type: "refusal", refusal: "no" }] },
      { role: "assistant", content: "no" },
    ],
    [
      { role: "assistant", content: "b", reasoning: "r" },
      { role: "assistant", content: "b", reasoning_content: "r" },
    ],
    [
      { role: "assistant", content: null, tool_calls: [], function_call: null },
      { role: "assistant", content: "" },
    ],
    [{ role: "user", content: "b", tool_calls: [] }, user("b")],
    [{ role: "user", content: "b", provider_options: {} }, user("b")],
  ])("of chat: %j", (message, wanted) => {
    expect(chat(message).messages).toEqual([user("a"), wanted]);
  });

  it.each([
    [{ role: "user", content: [text("b"), text("c")] }, [user("b\nc")]],
    // Claude Code's system message among the others.
    [{ role: "system", content: [text("b")] }, [system("b")]],
    [{ role: "assistant", content: [] }, [{ role: "assistant", content: "" }]],
    [
      {
        role: "assistant",
        content: [{ type: "thinking", thinking: "r", signature: "s" }, text("b"), use("t1"), use("t2")],
      },
      [
        {
          role: "assistant",
          content: "b",
          reasoning_content: "r",
          tool_calls: ["t1", "t2"].map((id) => called(id, { a: 1 }).tool_calls[0]),
        },
      ],
    ],
    [{ role: "assistant", content: [{ type: "redacted_thinking", data: "x" }, use("t1")] }, [called("t1", { a: 1 })]],
    [
      {
        role: "user",
        content: [
          { type: "tool_result", tool_use_id: "t1", content: [text("1"), text("2")] },
          { type: "tool_result", tool_use_id: "t2", is_error: true },
          text("go on"),
        ],
      },
      [result("t1", "1\n2"), result("t2", ""), user("go on")],
    ],
  ])("of Anthropic's: %j", (message, wanted) => {
    expect(messages(message).messages).toEqual([user("a"), ...wanted]);
  });

  it("takes Anthropic's system as text or blocks, without Claude Code's billing line", () => {
    const billing = text("x-anthropic-billing-header: cc_version=2.1.197.a; cc_entrypoint=cli; cch=1a2b3;");
    const of = (value: unknown) => messages(user("b"), { system: value }).messages;
    expect(of("be brief")).toEqual([system("be brief"), user("a"), user("b")]);
    expect(of([billing, text("be"), text("brief")])).toEqual([system("be\nbrief"), user("a"), user("b")]);
    expect(of([billing])).toEqual([user("a"), user("b")]);
  });

  it("joins the items of a reply of Responses to one message, and leaves the body as it was", () => {
    const reasoning = { type: "reasoning", id: "rs_1", summary: [], content: [{ type: "reasoning_text", text: "r" }] };
    const said = { type: "message", id: "m", role: "assistant", content: [{ type: "output_text", text: "b" }] };
    const call = (id: string) => ({ type: "function_call", call_id: id, name: "add", arguments: '{"a": 1.0}' });
    const output = (id: string) => ({
      type: "function_call_output",
      call_id: id,
      output: [{ type: "input_text", text: "1" }],
    });
    const items = [
      { role: "developer", content: [{ type: "input_text", text: "d" }] },
      user("a"),
      reasoning,
      said,
      call("c1"),
      call("c2"),
      output("c1"),
      output("c2"),
      { ...reasoning, content: undefined, summary: [{ type: "summary_text", text: "s" }] },
      call("c3"),
      output("c3"),
      said,
      said,
    ];
    const before = structuredClone(items);
    const { messages: read } = responses(items);
    expect(items).toEqual(before);
    const calls = (...ids: string[]) => ids.map((id) => called(id, '{"a": 1.0}').tool_calls[0]);
    expect(read).toEqual([
      system("d"),
      user("a"),
      { role: "assistant", content: "b", reasoning_content: "r", tool_calls: calls("c1", "c2") },
      result("c1", "1"),
      result("c2", "1"),
      { role: "assistant", content: null, reasoning_content: "s", tool_calls: calls("c3") },
      result("c3", "1"),
      { role: "assistant", content: "b" },
      { role: "assistant", content: "b" },
    ]);
  });
});

describe("what a wire leaves out or maps", () => {
  it("Codex's namespaces and hosted tools, Anthropic's own tools", () => {
    const tools = [
      { type: "namespace", name: "x", tools: [] },
      { type: "web_search" },
      { type: "custom", name: "apply_patch" },
      { type: "function", name: "f", strict: false },
    ];
    const bare = { name: "f", description: "", parameters: { type: "object", properties: {} } };
    expect(responses([user("a")], { tools, store: false }).tools).toEqual([{ type: "function", function: bare }]);
    const own = [
      { type: "bash_20250124", name: "bash" },
      { name: "f", input_schema: { type: "object" } },
    ];
    expect(messages(user("b"), { tools: own }).tools).toMatchObject([{ function: { name: "f" } }]);
  });

  it("stop, seed, budgets, choices of tools, thinking", () => {
    expect(chat(user("b"), { stop: "x", seed: 7, max_tokens: 5, max_completion_tokens: 6 })).toMatchObject({
      stop: ["x"],
      seed: 7,
      maxTokens: 6,
    });
    expect(chat(user("b"), { tool_choice: "none" }).toolChoice).toBe("none");
    expect(messages(user("b"), { stop_sequences: ["x", "y"], tool_choice: { type: "none" } })).toMatchObject({
      stop: ["x", "y"],
      toolChoice: "none",
      maxTokens: 9,
    });
    expect(messages(user("b"), { thinking: { type: "adaptive" } }).showReasoning).toBe(true);
    expect(messages(user("b"), { thinking: { type: "disabled" } }).showReasoning).toBe(false);
    expect(responses([user("a")], { max_output_tokens: 3 }).maxTokens).toBe(3);
    expect(responses([user("a")], { include: ["message.output_text.logprobs"] }).logprobs).toBe(true);
    expect(completionsWire.parse({ prompt: "a", logprobs: 0 })).toMatchObject({
      prompt: "a",
      logprobs: true,
      maxTokens: 16,
    });
    expect(completionsWire.parse({ prompt: [[3, 4]], max_tokens: 2 })).toMatchObject({ prompt: [3, 4], maxTokens: 2 });
    expect(completionsWire.parse({ prompt: [3] }).prompt).toEqual([3]);
  });

  // case B4
  it("sampling: the recipe's holds, and what was asked is on record", () => {
    expect(chat(user("b"), { temperature: 0, top_p: 0.5, top_k: -1 }).overridden).toEqual([
      "temperature",
      "top_p",
      "top_k",
    ]);
    expect(messages(user("b"), { temperature: 1, top_k: 5, metadata: {} }).overridden).toEqual([
      "temperature",
      "top_k",
    ]);
    expect(responses([user("a")], { top_p: 0.9, temperature: null }).overridden).toEqual(["top_p"]);
  });
});

describe("what a wire refuses, in its own words", () => {
  const png = { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } };
  const refusals: [Wire, object, string, string][] = [
    [
      chatWire,
      { messages: [{ role: "user", content: [png] }] },
      'messages.0.content.0 has type "image_url"',
      "messages.0.content.0",
    ],
    [
      messagesWire,
      { messages: [{ role: "user", content: [{ type: "image", source: {} }] }] },
      'has type "image"',
      "messages.0.content.0",
    ],
    [
      messagesWire,
      {
        messages: [
          user("a"),
          { role: "user", content: [{ type: "tool_result", tool_use_id: "t", content: [{ type: "image" }] }] },
        ],
      },
      'has type "image": this model takes text parts only.',
      "messages.1.content.0",
    ],
    [
      responsesWire,
      { input: [{ role: "user", content: [{ type: "input_image" }] }] },
      'has type "input_image"',
      "input.0.content.0",
    ],
    [responsesWire, { input: [user("a"), { type: "computer_call" }] }, 'input.1 has type "computer_call"', "input.1"],
    [responsesWire, { input: [] }, "input must be a list of at least one item.", "input"],
    [responsesWire, { input: "a", previous_response_id: "r" }, "send the whole conversation", "previous_response_id"],
    [responsesWire, { input: "a", truncation: "auto" }, "truncation is not supported", "truncation"],
    [chatWire, { messages: [] }, "messages must be a list of at least one message.", "messages"],
    [
      chatWire,
      { messages: [{ role: "robot", content: "a" }] },
      "messages.0.role must be system, user",
      "messages.0.role",
    ],
    [chatWire, { messages: [{ role: "user" }] }, "messages.0.content must be a string", "messages.0.content"],
    [
      chatWire,
      { messages: [{ role: "user", content: "a", tool_calls: [{ function: { name: "f" } }] }] },
      "belongs to an assistant",
      "messages.0.tool_calls",
    ],
    [chatWire, { messages: [user("a")], tool_choice: "required" }, "tool_choice must be auto or none", "tool_choice"],
    [
      messagesWire,
      { messages: [user("a")], tool_choice: { type: "any" } },
      "tool_choice must be auto or none",
      "tool_choice",
    ],
    [
      chatWire,
      { messages: [user("a")], frequency_penalty: 0.5 },
      "it would change what the policy samples",
      "frequency_penalty",
    ],
    [
      chatWire,
      { messages: [user("a")], chat_template_kwargs: { a: 1 } },
      "the gateway does not know the field",
      "chat_template_kwargs",
    ],
    [chatWire, { messages: [user("a")], constructor: 1 }, "constructor is not supported", "constructor"],
    [chatWire, { messages: [user("a")], n: 0 }, "n must be an integer from 1 to 128", "n"],
    [chatWire, { messages: [user("a")], stop: [""] }, "stop must be a string that is not empty", "stop"],
    [
      chatWire,
      { messages: [{ role: "assistant", function_call: { name: "f", arguments: "{}" } }] },
      "is deprecated: give tool_calls",
      "messages.0.function_call",
    ],
    [completionsWire, { prompt: [] }, "prompt must be one text, or a list of token ids, at least one.", "prompt"],
    [completionsWire, { prompt: [3, -1] }, "at least one", "prompt"],
    [completionsWire, { prompt: ["a", "b"] }, "prompt must be one text", "prompt"],
    [completionsWire, { prompt: "a", logprobs: 2 }, "logprobs must be 0", "logprobs"],
  ];

  it.each(refusals)("%#: %j", (wire, body, message, param) => {
    const refused = (() => {
      try {
        return wire.parse(body);
      } catch (error) {
        return error;
      }
    })();
    expect(refused).toBeInstanceOf(WireError);
    const { status, message: said, param: at } = refused as WireError;
    expect([status, said, at]).toEqual([400, expect.stringContaining(message), param]);
  });

  it.each([[null], ["text"], [[1]]])("a body that is %j", (body) => {
    for (const wire of [chatWire, completionsWire, messagesWire, responsesWire])
      expect(() => wire.parse(body)).toThrow(WireError);
  });

  it("takes what asks for nothing, and new beta fields of coding agents", () => {
    const neutral = {
      frequency_penalty: 0,
      presence_penalty: 0,
      logit_bias: {},
      modalities: ["text"],
      top_logprobs: 0,
      stop: null,
    };
    expect(chat(user("b"), neutral).overridden).toEqual([]);
    expect(messages(user("b"), { a_new_beta_field: { x: 1 } }).messages).toHaveLength(2);
    expect(
      responses([user("a")], { client_metadata: { x: 1 }, truncation: "disabled", background: false }).messages,
    ).toHaveLength(1);
  });
});
