import { describe, expect, it } from "vitest";
import type { StopReason } from "../types.ts";
import { chatWire } from "./chat.ts";
import { completionsWire } from "./completions.ts";
import { messagesWire } from "./messages.ts";
import { toJson } from "./raw-json.ts";
import { responsesWire } from "./responses.ts";
import type { Wire, WireChoice, WireReply, WireRequest } from "./types.ts";

const said: WireChoice = {
  content: "Five.",
  reasoning: null,
  toolCalls: [],
  stop: "stop",
  stopString: null,
  tokenIds: [7, 8, 2],
  logprobs: null,
};
const call = (id: string, input: string) => ({
  id,
  type: "function" as const,
  function: { name: "add", arguments: input },
});
const calling: WireChoice = {
  ...said,
  content: null,
  reasoning: "I add.",
  toolCalls: [call("c1", '{"a": 1.0}'), call("c2", "{}")],
};
const reply = (...choices: Partial<WireChoice>[]): WireReply => ({
  id: "id1",
  created: 1700000000,
  model: "policy",
  promptTokenIds: [1, 5, 6, 4],
  choices: choices.map((choice) => ({ ...said, ...choice })),
});
const asked = chatWire.parse({ messages: [{ role: "user", content: "2+3?" }] });
const request = (more: Partial<WireRequest> = {}): WireRequest => ({ ...asked, tools: [], ...more });
const body = (wire: Wire, one: WireReply, more: Partial<WireRequest> = {}) =>
  JSON.parse(toJson(wire.answer(request(more), one)));
const events = (wire: Wire, one: WireReply, more: Partial<WireRequest> = {}) =>
  wire.events(request({ stream: true, ...more }), one).map(({ event, data }) => ({ event, data: data as never }));

// Shapes as the vendors' API references give them.
describe("/v1/chat/completions", () => {
  it("answers a text", () => {
    expect(body(chatWire, reply({}))).toEqual({
      id: "id1",
      object: "chat.completion",
      created: 1700000000,
      model: "policy",
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: "Five.", refusal: null },
          logprobs: null,
          finish_reason: "stop",
        },
      ],
      usage: { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 },
    });
  });

  it("answers calls with the arguments' own text, and the reasoning apart", () => {
    const [choice] = body(chatWire, reply(calling)).choices;
    expect(choice.finish_reason).toBe("tool_calls");
    expect(choice.message).toEqual({
      role: "assistant",
      content: null,
      refusal: null,
      reasoning_content: "I add.",
      tool_calls: [call("c1", '{"a": 1.0}'), call("c2", "{}")],
    });
  });

  it("counts the prompt once for two choices, and gives ids and log-probabilities where asked", () => {
    const logprobs = [{ token: "é", logprob: -0.5 }];
    const both = body(chatWire, reply({ logprobs }, { tokenIds: [9] }), { n: 2, returnTokenIds: true });
    expect(both.usage).toEqual({ prompt_tokens: 4, completion_tokens: 4, total_tokens: 8 });
    expect(both.prompt_token_ids).toEqual([1, 5, 6, 4]);
    expect(both.choices.map((choice: { token_ids: number[] }) => choice.token_ids)).toEqual([[7, 8, 2], [9]]);
    expect(both.choices[0].logprobs).toEqual({
      content: [{ token: "é", logprob: -0.5, bytes: [0xc3, 0xa9], top_logprobs: [] }],
    });
  });

  it("streams role, reasoning, text, calls, end, usage and the closing word", () => {
    const chunks = events(chatWire, reply({ ...calling, content: "Let me." }), { includeUsage: true });
    expect(chunks.at(-1)).toEqual({ event: undefined, data: "[DONE]" });
    const data = chunks
      .slice(0, -1)
      .map((chunk) => chunk.data as { choices: { delta: object; finish_reason: string }[] });
    expect(data.slice(0, -1).map(({ choices: [choice] }) => [choice!.delta, choice!.finish_reason])).toEqual([
      [{ role: "assistant", content: "" }, null],
      [{ reasoning_content: "I add." }, null],
      [{ content: "Let me." }, null],
      [{ tool_calls: [{ index: 0, ...call("c1", '{"a": 1.0}') }] }, null],
      [{ tool_calls: [{ index: 1, ...call("c2", "{}") }] }, null],
      [{}, "tool_calls"],
    ]);
    expect(data.at(-1)).toMatchObject({
      choices: [],
      usage: { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 },
    });
    expect(new Set(data.map((chunk) => (chunk as unknown as { object: string }).object))).toEqual(
      new Set(["chat.completion.chunk"]),
    );
  });
});

describe("/v1/completions", () => {
  it("answers and streams text, offsets and the ids", () => {
    const logprobs = [
      { token: "Fi", logprob: -1 },
      { token: "ve.", logprob: -2 },
    ];
    const asked = { returnTokenIds: true, includeUsage: true };
    const choice = {
      index: 0,
      text: "Five.",
      logprobs: {
        text_offset: [0, 2],
        token_logprobs: [-1, -2],
        tokens: ["Fi", "ve."],
        top_logprobs: [{ Fi: -1 }, { "ve.": -2 }],
      },
      finish_reason: "length",
      token_ids: [7, 8, 2],
      prompt_token_ids: [1, 5, 6, 4],
    };
    const usage = { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 };
    const head = { id: "id1", object: "text_completion", created: 1700000000, model: "policy" };
    const one = reply({ logprobs, stop: "length" });
    expect(body(completionsWire, one, asked)).toEqual({ ...head, choices: [choice], usage });
    expect(events(completionsWire, one, asked).map(({ data }) => data)).toEqual([
      { ...head, choices: [choice] },
      { ...head, choices: [], usage },
      "[DONE]",
    ]);
  });
});

describe("/v1/messages", () => {
  const usage = { input_tokens: 4, output_tokens: 3, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 };
  const shown = { showReasoning: true };

  it("answers a text; reasoning only where thinking is enabled", () => {
    const wanted = {
      id: "id1",
      type: "message",
      role: "assistant",
      model: "policy",
      content: [{ type: "text", text: "Five.", citations: null }],
      stop_reason: "end_turn",
      stop_sequence: null,
      usage,
    };
    const thinking = { type: "thinking", thinking: "2+3", signature: "" };
    const one = reply({ reasoning: "2+3" });
    expect(body(messagesWire, one, { showReasoning: false })).toEqual(wanted);
    expect(body(messagesWire, one, shown)).toEqual({ ...wanted, content: [thinking, ...wanted.content] });
  });

  // case J5
  it("answers a call whose input keeps the text of its numbers", () => {
    const json = toJson(messagesWire.answer(request({ showReasoning: false }), reply(calling)));
    expect(json).toContain('{"type":"tool_use","id":"c1","name":"add","input":{"a": 1.0}}');
    const odd = '{"q": "\\"\\\\ \\u00e9 é\\n", "n": 1e-07}';
    const raw = toJson(messagesWire.answer(request(), reply({ ...calling, toolCalls: [call("c1", odd)] })));
    expect(raw).toContain(`"input":${odd}}`);
    expect(JSON.parse(json)).toMatchObject({
      stop_reason: "tool_use",
      content: [{ id: "c1" }, { id: "c2", input: {} }],
    });
  });

  it("streams blocks by index, in the order of the API", () => {
    const stream = events(messagesWire, reply({ ...calling, content: "Let me." }), shown);
    expect(stream.every(({ event, data }) => event === (data as { type: string }).type)).toBe(true);
    const data = stream.map((one) => one.data as Record<string, unknown>);
    const block = (index: number, opening: object, delta: object) => [
      { type: "content_block_start", index, content_block: opening },
      { type: "content_block_delta", index, delta },
      { type: "content_block_stop", index },
    ];
    const use = (id: string) => ({ type: "tool_use", id, name: "add", input: {} });
    const head = { id: "id1", type: "message", role: "assistant", model: "policy", content: [] };
    const opening = { ...head, stop_reason: null, stop_sequence: null, usage: { ...usage, output_tokens: 0 } };
    expect(data).toEqual([
      { type: "message_start", message: opening },
      ...block(0, { type: "thinking", thinking: "", signature: "" }, { type: "thinking_delta", thinking: "I add." }),
      ...block(1, { type: "text", text: "", citations: null }, { type: "text_delta", text: "Let me." }),
      ...block(2, use("c1"), { type: "input_json_delta", partial_json: '{"a": 1.0}' }),
      ...block(3, use("c2"), { type: "input_json_delta", partial_json: "{}" }),
      { type: "message_delta", delta: { stop_reason: "tool_use", stop_sequence: null }, usage },
      { type: "message_stop" },
    ]);
  });

  it("names the stop sequence that was met", () => {
    expect(body(messagesWire, reply({ stopString: "END" }))).toMatchObject({
      stop_reason: "stop_sequence",
      stop_sequence: "END",
    });
  });
});

describe("/v1/responses", () => {
  it("answers items and a usage with its details", () => {
    const tools = [{ type: "function", function: { name: "add", description: "", parameters: {} } }];
    const answer = body(responsesWire, reply({ ...calling, content: "Let me." }), { tools });
    expect(answer).toMatchObject({
      id: "id1",
      object: "response",
      created_at: 1700000000,
      status: "completed",
      error: null,
      incomplete_details: null,
      model: "policy",
      tools: [{ type: "function", name: "add", strict: false, parameters: {} }],
      usage: {
        input_tokens: 4,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: 3,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 7,
      },
    });
    expect(answer.output).toMatchObject([
      { type: "reasoning", status: "completed", summary: [], content: [{ type: "reasoning_text", text: "I add." }] },
      { type: "message", role: "assistant", content: [{ type: "output_text", text: "Let me.", annotations: [] }] },
      { type: "function_call", call_id: "c1", name: "add", arguments: '{"a": 1.0}', status: "completed" },
      { type: "function_call", call_id: "c2", name: "add", arguments: "{}" },
    ]);
    const ids = answer.output.map((item: { id: string }) => item.id);
    expect(new Set(ids).size).toBe(4);
  });

  it("streams each item from its announcement to its end, numbered", () => {
    const stream = events(responsesWire, reply({ ...calling, content: "Let me.", toolCalls: [call("c1", "{}")] }));
    const data = stream.map((one) => one.data as Record<string, unknown>);
    expect(stream.every(({ event }, at) => event === data[at]!.type)).toBe(true);
    expect(data.map((one) => one.sequence_number)).toEqual(data.map((_, at) => at));
    const text = (index: number, name: string) => [
      [index, "response.output_item.added"],
      [index, "response.content_part.added"],
      [index, `response.${name}.delta`],
      [index, `response.${name}.done`],
      [index, "response.content_part.done"],
      [index, "response.output_item.done"],
    ];
    expect(data.map((one) => [one.output_index, one.type])).toEqual([
      [undefined, "response.created"],
      [undefined, "response.in_progress"],
      ...text(0, "reasoning_text"),
      ...text(1, "output_text"),
      [2, "response.output_item.added"],
      [2, "response.function_call_arguments.delta"],
      [2, "response.function_call_arguments.done"],
      [2, "response.output_item.done"],
      [undefined, "response.completed"],
    ]);
    const { output } = data.at(-1)!.response as { output: object[] };
    const done = data.filter((one) => one.type === "response.output_item.done").map((one) => one.item);
    expect(output).toEqual(done);
    expect(data[0]!.response).toMatchObject({ status: "in_progress", output: [] });
  });

  it("answers an empty text as an item, so that it comes back", () => {
    const { output } = body(responsesWire, reply({ content: "" }));
    expect(output).toMatchObject([{ type: "message", content: [{ type: "output_text", text: "" }] }]);
  });

  it("carries log-probabilities where they are asked", () => {
    const answer = body(responsesWire, reply({ logprobs: [{ token: "a", logprob: -1 }] }));
    const logprobs = [{ token: "a", logprob: -1, bytes: [97], top_logprobs: [] }];
    expect(answer.output).toMatchObject([{ content: [{ text: "Five.", logprobs }] }]);
  });
});

// case G2
describe("why it ended", () => {
  const stops: [StopReason, string, string, string][] = [
    ["stop", "stop", "end_turn", "completed"],
    ["length", "length", "max_tokens", "incomplete"],
    ["context", "length", "model_context_window_exceeded", "incomplete"],
    ["timeout", "length", "max_tokens", "incomplete"],
    ["abort", "length", "max_tokens", "incomplete"],
  ];

  it.each(stops)("%s is %s, %s, %s", (stop, finish, stopReason, status) => {
    const one = reply({ stop });
    expect(body(chatWire, one).choices[0].finish_reason).toBe(finish);
    expect(body(completionsWire, one).choices[0].finish_reason).toBe(finish);
    expect(body(messagesWire, one).stop_reason).toBe(stopReason);
    expect(body(responsesWire, one).status).toBe(status);
    expect(events(responsesWire, one).at(-1)!.event).toBe(`response.${status}`);
    const details = status === "completed" ? null : { reason: "max_output_tokens" };
    expect(body(responsesWire, one).incomplete_details).toEqual(details);
  });
});

describe("errors", () => {
  // case H3
  it("name a prompt that does not fit by the code that makes agents compact", () => {
    const said = "9 tokens; this model's maximum context length is 8 tokens";
    expect(chatWire.error(400, said, null)).toMatchObject({
      error: { message: said, code: "context_length_exceeded" },
    });
  });

  it.each([
    [400, "invalid_request_error", "invalid_request_error"],
    [404, "invalid_request_error", "not_found_error"],
    [413, "invalid_request_error", "request_too_large"],
    [429, "rate_limit_error", "rate_limit_error"],
    [500, "server_error", "api_error"],
  ])("%i", (status, openAi, anthropic) => {
    for (const wire of [chatWire, completionsWire, responsesWire]) {
      const error = { message: "no", type: openAi, param: "n", code: null };
      expect(wire.error(status, "no", "n")).toEqual({ error });
    }
    expect(messagesWire.error(status, "no", "n")).toEqual({ type: "error", error: { type: anthropic, message: "no" } });
  });
});
