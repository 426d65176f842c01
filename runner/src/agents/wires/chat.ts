import { readFlag } from "../../engines/embedded/fields.ts";
import { readMessages, readTools } from "./chat-messages.ts";
import { readRequest } from "./fields.ts";
import {
  encodeBody,
  encodeError,
  encodeEvents,
  encodeFinish,
  encodeLogprobs,
  encodePromptIds,
  encodeUsage,
} from "./openai.ts";
import type { TextWire, WireChoice, WireRequest } from "./types.ts";

const chunkObject = "chat.completion.chunk";
const running = { logprobs: null, finish_reason: null };

/** OpenAI's `/v1/chat/completions`; reasoning apart is `reasoning_content`. */
export const chatWire: TextWire = {
  parse(value, host) {
    const { body, request } = readRequest(value, "chat", host);
    const logprobs = readFlag(body, "logprobs", false);
    return { ...request, messages: readMessages(body.messages), tools: readTools(body.tools), logprobs };
  },

  answer(request, reply) {
    const choices = reply.choices.map((choice, index) => {
      return { index, message: encodeMessage(choice), ...encodeEnd(request, choice) };
    });
    const usage = encodeUsage(reply);
    return encodeBody("chat.completion", reply, choices, { usage, ...encodePromptIds(request, reply) });
  },

  events(request, reply) {
    const choices = reply.choices.flatMap((choice, index) => [
      ...encodeDeltas(choice).map((delta) => ({ index, delta, ...running })),
      { index, delta: {}, ...encodeEnd(request, choice) },
    ]);
    const chunks = choices.map((choice) => encodeBody(chunkObject, reply, [choice]));
    return encodeEvents(chatWire, request, reply, [...chatWire.opening(request, reply), ...chunks]);
  },

  opening: (request, head) =>
    Array.from({ length: request.n }, (_, index) => {
      const choice = { index, delta: { role: "assistant", content: "" }, ...running };
      return encodeBody(chunkObject, head, [choice], encodePromptIds(request, head));
    }),
  chunk: (request, head, part, index) =>
    encodeBody(chunkObject, head, [{ index, delta: { content: part.content }, ...encodeEnd(request, part) }]),
  usage: (reply) => encodeBody(chunkObject, reply, [], { usage: encodeUsage(reply) }),
  error: encodeError,
};

function encodeMessage({ content, reasoning, toolCalls }: WireChoice) {
  const tool_calls = toolCalls.length > 0 ? toolCalls : undefined;
  return { role: "assistant", content, refusal: null, reasoning_content: reasoning ?? undefined, tool_calls };
}

/** After the role the reasoning, the text, then each call. */
function encodeDeltas({ content, reasoning, toolCalls }: WireChoice): object[] {
  const calls = toolCalls.map((call, index) => ({ tool_calls: [{ index, ...call }] }));
  return [...(reasoning ? [{ reasoning_content: reasoning }] : []), ...(content ? [{ content }] : []), ...calls];
}

function encodeEnd(request: WireRequest, choice: WireChoice) {
  const { toolCalls, logprobs, stopReason } = choice;
  const reason = encodeFinish(choice);
  return {
    logprobs: logprobs && { content: encodeLogprobs(logprobs) },
    finish_reason: reason === "stop" && toolCalls.length > 0 ? "tool_calls" : reason,
    stop_reason: stopReason,
    token_ids: request.returnTokenIds ? choice.tokenIds : undefined,
  };
}
