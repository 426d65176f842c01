import type { Json } from "../../engines/embedded/fields.ts";
import type { Message } from "../types.ts";
import { readMessage, readText, readTools } from "./chat-messages.ts";
import { readList, readRequest, wrong } from "./fields.ts";
import { encodeError, encodeLogprobs, encodeUsage } from "./openai.ts";
import type { Wire, WireChoice, WireReply, WireRequest } from "./types.ts";

/** OpenAI's `/v1/responses`, without a store. */
export const responsesWire: Wire = {
  parse(value) {
    const { body, request } = readRequest(value, "responses");
    const { include, instructions = "" } = body;
    const messages = readInput(body.input);
    if (instructions !== "") messages.unshift({ role: "system", content: readText(instructions, "instructions") });
    const logprobs = Array.isArray(include) && include.includes("message.output_text.logprobs");
    return { ...request, messages, tools: readTools(body.tools), logprobs };
  },

  answer(request, reply) {
    const choice = reply.choices[0]!;
    const output = encodeItems(reply.id, choice).map(({ whole }) => whole);
    return encodeResponse(request, reply, statusOf(choice), output);
  },

  events(request, reply) {
    const choice = reply.choices[0]!;
    const items = encodeItems(reply.id, choice);
    const status = statusOf(choice);
    const opening = { ...encodeResponse(request, reply, "in_progress", []), usage: null };
    const output = items.map(({ whole }) => whole);
    const events: Json[] = [
      { type: "response.created", response: opening },
      { type: "response.in_progress", response: opening },
      ...items.flatMap(({ whole, opening: item, between }, output_index) => [
        { type: "response.output_item.added", output_index, item },
        ...between.map((event) => ({ item_id: whole.id, output_index, ...event })),
        { type: "response.output_item.done", output_index, item: whole },
      ]),
      { type: `response.${status}`, response: encodeResponse(request, reply, status, output) },
    ];
    return events.map((data, sequence_number) => ({ event: String(data.type), data: { ...data, sequence_number } }));
  },

  error: encodeError,
};

/** Items, as OpenAI's chat says them. */
const asChat: Record<string, (item: Json) => Json> = {
  message: ({ role, content }) => ({ role, content }),
  reasoning: (item) => ({ role: "assistant", reasoning_content: readText(item.content ?? item.summary, "input") }),
  function_call: (item) => ({ role: "assistant", tool_calls: [{ id: item.call_id, function: item }] }),
  function_call_output: ({ call_id: tool_call_id, output }) => ({ role: "tool", tool_call_id, content: output }),
};

/** One reply was several items (its reasoning, its text, its calls) and is one message again. */
function readInput(input: unknown): Message[] {
  if (typeof input === "string") return [{ role: "user", content: input }];
  const said: { message: Json; where: string }[] = [];
  for (const [index, item] of readList(input, "input", "item").entries()) {
    const type = String(item.type ?? "message");
    const where = `input.${index}`;
    if (!Object.hasOwn(asChat, type)) throw wrong(where, `has type "${type}", which the gateway does not take`);
    const message = asChat[type]!(item);
    const last = said.at(-1)?.message;
    const isThought = last && last.content === undefined && last.tool_calls === undefined;
    const { tool_calls: calls } = message;
    const continues = last?.role === "assistant" && message.role === "assistant" && (isThought || calls !== undefined);
    if (!continues) said.push({ message, where });
    else Object.assign(last, message, calls && { tool_calls: [last.tool_calls ?? [], calls].flat() });
  }
  return said.map(({ message, where }) => readMessage(message, where));
}

function statusOf({ stop }: WireChoice): "completed" | "incomplete" {
  return stop === "stop" ? "completed" : "incomplete";
}

const unasked = { instructions: null, metadata: {}, parallel_tool_calls: true, temperature: null, top_p: null };

function encodeResponse(request: WireRequest, reply: WireReply, status: string, output: object[]) {
  const { id, created: created_at, model } = reply;
  const { prompt_tokens: input_tokens, completion_tokens: output_tokens, total_tokens } = encodeUsage(reply);
  const input_tokens_details = { cached_tokens: 0, cache_write_tokens: 0 };
  const output_tokens_details = { reasoning_tokens: 0 }; // not told apart
  return {
    ...{ id, object: "response", created_at, status, error: null, model, output, ...unasked },
    incomplete_details: status === "incomplete" ? { reason: "max_output_tokens" } : null,
    tool_choice: request.toolChoice,
    tools: request.tools.map(({ type, function: called }) => ({ type, strict: false, ...(called as Json) })),
    usage: { input_tokens, input_tokens_details, output_tokens, output_tokens_details, total_tokens },
  };
}

/** Of an item: as it is at the end, as it is announced, and the events between. */
interface Item {
  whole: { id: string };
  opening: object;
  between: Json[];
}

function encodeItems(replyId: string, choice: WireChoice): Item[] {
  const { content, reasoning, toolCalls, logprobs } = choice;
  const head = (kind: string, index = 0) => ({ id: `${kind}_${replyId}_${index}`, status: statusOf(choice) });
  const items: Item[] = toolCalls.map(({ id: call_id, function: { name, arguments: input } }, index) => {
    const whole = { ...head("call", index), type: "function_call", call_id, name, arguments: input };
    const delta = { type: "response.function_call_arguments.delta", delta: input };
    const done = { type: "response.function_call_arguments.done", name, arguments: input };
    return { whole, opening: { ...whole, status: "in_progress", arguments: "" }, between: [delta, done] };
  });
  const textItem = (more: object, type: string, text: string, tokens?: object[]): Item => {
    const part = { type, text, logprobs: tokens, annotations: tokens && [] };
    const whole = { ...more, ...head(type), content: [part] };
    const between = [
      { type: "response.content_part.added", part: { ...part, text: "", logprobs: tokens && [] } },
      { type: `response.${type}.delta`, delta: text, logprobs: tokens },
      { type: `response.${type}.done`, text, logprobs: tokens },
      { type: "response.content_part.done", part },
    ].map((event) => ({ content_index: 0, ...event }));
    return { whole, opening: { ...whole, status: "in_progress", content: [] }, between };
  };
  const message = { type: "message", role: "assistant" };
  if (content !== null) items.unshift(textItem(message, "output_text", content, encodeLogprobs(logprobs ?? [])));
  if (reasoning) items.unshift(textItem({ type: "reasoning", summary: [] }, "reasoning_text", reasoning));
  return items;
}
