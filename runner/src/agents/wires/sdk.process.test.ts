import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { chatWire } from "./chat.ts";
import { completionsWire } from "./completions.ts";
import { messagesWire } from "./messages.ts";
import { toJson } from "./raw-json.ts";
import { responsesWire } from "./responses.ts";
import { type Wire, type WireChoice, WireError } from "./types.ts";

/** The vendors' own clients read what the wires write, whole and streamed. */

const wires: Record<string, Wire> = {
  "/v1/chat/completions": chatWire,
  "/v1/completions": completionsWire,
  "/v1/messages": messagesWire,
  "/v1/responses": responsesWire,
};

const call = (id: string, input: string) => ({
  id,
  type: "function" as const,
  function: { name: "add", arguments: input },
});
const choice: WireChoice = {
  content: "I call.",
  reasoning: "2+3",
  toolCalls: [call("call_1", '{"a": 1.0, "b": "é\\n"}'), call("call_2", "{}")],
  stop: "stop",
  stopString: null,
  tokenIds: [7, 8, 2],
  logprobs: null,
};

let server: Server;
let openai: OpenAI;
let anthropic: Anthropic;

beforeAll(async () => {
  server = createServer(async (http, answer) => {
    const wire = wires[http.url!.split("?")[0]!]!;
    let body = "";
    for await (const part of http.setEncoding("utf8")) body += part;
    try {
      const request = wire.parse(JSON.parse(body));
      const choices = Array.from({ length: request.n }, () => choice);
      const reply = { id: "reply1", created: 1700000000, model: request.model, promptTokenIds: [1, 5, 6, 4], choices };
      answer.setHeader("content-type", request.stream ? "text/event-stream" : "application/json");
      if (!request.stream) return answer.end(toJson(wire.answer(request, reply)));
      for (const { event, data } of wire.events(request, reply)) {
        answer.write(`${event ? `event: ${event}\n` : ""}data: ${typeof data === "string" ? data : toJson(data)}\n\n`);
      }
      answer.end();
    } catch (error) {
      const { status, message, param } = error as WireError;
      if (!(error instanceof WireError)) throw error;
      answer.writeHead(status, { "content-type": "application/json" }).end(toJson(wire.error(status, message, param)));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k", maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: url, apiKey: "k", maxRetries: 0 });
});

afterAll(() => new Promise((resolve) => server.close(resolve)));

const question = { model: "policy", messages: [{ role: "user" as const, content: "2+3?" }] };
const usage = { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 };

describe("the OpenAI SDK", () => {
  it("reads a chat completion, and two choices of one", async () => {
    const completion = await openai.chat.completions.create({ ...question, n: 2 });
    expect(completion.choices).toHaveLength(2);
    expect(completion.choices[1]).toMatchObject({ finish_reason: "tool_calls", message: { content: "I call." } });
    expect(completion.choices[1]!.message.tool_calls).toEqual(choice.toolCalls);
    expect(completion.usage).toEqual({ ...usage, completion_tokens: 6, total_tokens: 10 });
  });

  it("puts the chunks of a stream together to the same completion", async () => {
    const stream = openai.chat.completions.stream({ ...question, stream_options: { include_usage: true } });
    const calls: string[] = [];
    stream.on("tool_calls.function.arguments.done", (done) => calls.push(done.arguments));
    const whole = await stream.finalChatCompletion();
    const { message, finish_reason } = whole.choices[0]!;
    expect([message.content, finish_reason, whole.usage]).toEqual(["I call.", "tool_calls", usage]);
    expect(message.tool_calls).toMatchObject(choice.toolCalls);
    expect(message).toMatchObject({ reasoning_content: "2+3" });
    expect(calls).toEqual(choice.toolCalls.map((one) => one.function.arguments));
  });

  it("reads a response, and the events of a streamed one", async () => {
    const response = await openai.responses.create({ model: "policy", input: "2+3?" });
    expect([response.output_text, response.status, response.usage?.total_tokens]).toEqual(["I call.", "completed", 7]);
    const stream = openai.responses.stream({ model: "policy", input: "2+3?" });
    const types: string[] = [];
    for await (const event of stream) types.push(event.type);
    expect([types[0], types[1], types.at(-1)]).toEqual([
      "response.created",
      "response.in_progress",
      "response.completed",
    ]);
    const streamed = await stream.finalResponse();
    expect(streamed.output).toMatchObject(response.output as object[]);
    expect(streamed.output.map((item) => item.type)).toEqual([
      "reasoning",
      "message",
      "function_call",
      "function_call",
    ]);
  });

  it("reads completions, whole and streamed", async () => {
    const whole = await openai.completions.create({ model: "policy", prompt: "2+3=" });
    expect([whole.choices[0]!.text, whole.usage]).toEqual(["I call.", usage]);
    let text = "";
    const stream = await openai.completions.create({ model: "policy", prompt: "2+3=", stream: true });
    for await (const chunk of stream) text += chunk.choices[0]!.text;
    expect(text).toBe("I call.");
  });

  it("reads the error", async () => {
    const refused = openai.chat.completions.create({ ...question, tool_choice: "required" });
    await expect(refused).rejects.toMatchObject({ status: 400, type: "invalid_request_error", param: "tool_choice" });
  });
});

describe("the Anthropic SDK", () => {
  const asked = { ...question, max_tokens: 64 };
  const blocks = [
    { type: "text", text: "I call." },
    { type: "tool_use", id: "call_1", name: "add", input: { a: 1, b: "é\n" } },
    { type: "tool_use", id: "call_2", name: "add", input: {} },
  ];

  it("reads a message, and puts the events of a streamed one together to the same", async () => {
    const message = await anthropic.messages.create(asked);
    expect(message.content).toMatchObject(blocks);
    expect([message.stop_reason, message.usage.input_tokens, message.usage.output_tokens]).toEqual(["tool_use", 4, 3]);
    const streamed = await anthropic.messages.stream(asked).finalMessage();
    expect(streamed.content).toEqual(message.content);
    expect([streamed.stop_reason, streamed.usage.output_tokens]).toEqual(["tool_use", 3]);
  });

  it("reads thinking where it enables it", async () => {
    const thinking = { type: "enabled" as const, budget_tokens: 1024 };
    const streamed = await anthropic.messages.stream({ ...asked, thinking }).finalMessage();
    expect(streamed.content).toMatchObject([{ type: "thinking", thinking: "2+3" }, ...blocks]);
  });

  it("reads the error", async () => {
    const image = { type: "image" as const, source: { type: "url" as const, url: "http://localhost/a.png" } };
    const refused = anthropic.messages.create({ ...asked, messages: [{ role: "user", content: [image] }] });
    await expect(refused).rejects.toMatchObject({ status: 400, type: "invalid_request_error" });
    await expect(refused).rejects.toThrow("this model takes text parts only");
  });
});
