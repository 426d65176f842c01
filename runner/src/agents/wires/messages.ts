import { isObject } from "../../data/config-json.ts";
import type { Json } from "../../engines/embedded/fields.ts";
import { readMessage, readText, readTools } from "./chat-messages.ts";
import { readList, readRequest } from "./fields.ts";
import { encodeUsage } from "./openai.ts";
import { rawJson } from "./raw-json.ts";
import type { Wire, WireChoice, WireReply, WireRequest } from "./types.ts";

/** Anthropic's `/v1/messages`. */
export const messagesWire: Wire = {
  parse(value) {
    const { body, request } = readRequest(value, "messages");
    const { system = "", thinking } = body;
    const said = readList(body.messages, "messages", "message");
    const first = readText(Array.isArray(system) ? system.filter((block) => !isBilling(block)) : system, "system");
    const messages = said.flatMap((one, index) => asChat(one).map((chat) => readMessage(chat, `messages.${index}`)));
    if (first !== "") messages.unshift({ role: "system", content: first });
    const showReasoning = isObject(thinking) && thinking.type !== "disabled";
    return { ...request, messages, tools: readTools(body.tools), showReasoning };
  },

  answer(request, reply) {
    const choice = reply.choices[0]!;
    const content = encodeBlocks(request, choice).map(({ whole }) => whole);
    return { ...encodeHead(reply), content, ...encodeStop(choice), usage: usageOf(reply) };
  },

  events(request, reply) {
    const choice = reply.choices[0]!;
    const usage = usageOf(reply);
    const opening = { content: [], stop_reason: null, stop_sequence: null, usage: { ...usage, output_tokens: 0 } };
    const blocks = encodeBlocks(request, choice).flatMap(({ opening, delta }, index) => [
      { type: "content_block_start", index, content_block: opening },
      { type: "content_block_delta", index, delta },
      { type: "content_block_stop", index },
    ]);
    const events = [
      { type: "message_start", message: { ...encodeHead(reply), ...opening } },
      ...blocks,
      { type: "message_delta", delta: encodeStop(choice), usage },
      { type: "message_stop" },
    ];
    return events.map((data) => ({ event: data.type, data }));
  },

  error(status, message) {
    const type = errors[status] ?? (status < 500 ? "invalid_request_error" : "api_error");
    return { type: "error", error: { type, message } };
  },
};

const errors: Record<number, string> = { 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error" };

function isBilling(block: unknown): boolean {
  return isObject(block) && String(block.text).startsWith("x-anthropic-billing-header");
}

/** As OpenAI says it: results of tools are messages of their own, before the text beside them. */
function asChat({ role, content }: Json): Json[] {
  if (!Array.isArray(content)) return [{ role, content }];
  const of = (type: string): Json[] => content.filter((block) => isObject(block) && block.type === type);
  const results = of("tool_result").map(({ tool_use_id, content: result }) => {
    return { role: "tool", tool_call_id: tool_use_id, content: result ?? "" };
  });
  const calls = of("tool_use").map(({ id, name, input }) => ({ id, function: { name, arguments: input } }));
  const thoughts = of("thinking").map(({ thinking }) => thinking);
  const apart = ["tool_result", "tool_use", "thinking", "redacted_thinking"];
  const text = content.filter((block) => !apart.includes(block?.type));
  if (results.length > 0 && text.length === 0) return results;
  const said = text.length > 0 || role !== "assistant" ? text : null;
  const reasoning_content = thoughts.length > 0 ? thoughts.join("\n") : null;
  return [...results, { role, content: said, reasoning_content, tool_calls: calls.length > 0 ? calls : null }];
}

function encodeHead({ id, model }: WireReply) {
  return { id, type: "message", role: "assistant", model };
}

/** Each block as it is whole, as it opens, and what comes between. */
function encodeBlocks({ showReasoning }: WireRequest, { content, reasoning, toolCalls }: WireChoice) {
  const textBlock = (type: "text" | "thinking", text: string, more: object) => {
    const opening = { type, [type]: "", ...more };
    return { whole: { ...opening, [type]: text }, opening, delta: { type: `${type}_delta`, [type]: text } };
  };
  const calls = toolCalls.map(({ id, function: called }) => {
    const opening = { type: "tool_use", id, name: called.name, input: {} };
    const delta = { type: "input_json_delta", partial_json: called.arguments };
    return { whole: { ...opening, input: rawJson(called.arguments) }, opening, delta };
  });
  return [
    ...(showReasoning && reasoning ? [textBlock("thinking", reasoning, { signature: "" })] : []),
    ...(content ? [textBlock("text", content, { citations: null })] : []),
    ...calls,
  ];
}

function encodeStop({ stop, stopString, toolCalls }: WireChoice) {
  const cut = stop === "context" ? "model_context_window_exceeded" : "max_tokens";
  const ended = stopString !== null ? "stop_sequence" : toolCalls.length > 0 ? "tool_use" : "end_turn";
  return { stop_reason: stop === "stop" ? ended : cut, stop_sequence: stopString };
}

function usageOf(reply: WireReply) {
  const { prompt_tokens: input_tokens, completion_tokens: output_tokens } = encodeUsage(reply);
  return { input_tokens, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens };
}
