import { readIds, readRequest, wrong } from "./fields.ts";
import { encodeBody, encodeError, encodeEvents, encodeFinish, encodePromptIds, encodeUsage } from "./openai.ts";
import type { StreamPosition, TextWire, WireChoice, WireHead, WireRequest } from "./types.ts";

const object = "text_completion";
const start = { tokens: 0, characters: 0 };

/** OpenAI's older `/v1/completions`: text, or ids, to text. */
export const completionsWire: TextWire = {
  parse(value, host) {
    const { body, request } = readRequest(value, "completions", host);
    const { logprobs = null } = body;
    if (logprobs !== null && logprobs !== 0) throw wrong("logprobs", "must be 0: only sampled tokens have one");
    const maxTokens = request.maxTokens ?? 16;
    return { ...request, prompt: readPrompt(body.prompt), maxTokens, logprobs: logprobs === 0 };
  },

  answer(request, reply) {
    const choices = reply.choices.map((choice, index) => encodeChoice(request, reply, choice, index, start));
    return encodeBody(object, reply, choices, { usage: encodeUsage(reply) });
  },

  events(request, reply) {
    const chunks = reply.choices.map((choice, index) => completionsWire.chunk(request, reply, choice, index, start));
    return encodeEvents(completionsWire, request, reply, chunks);
  },

  opening: () => [],
  chunk: (request, head, ...part) => encodeBody(object, head, [encodeChoice(request, head, ...part)]),
  usage: (reply) => encodeBody(object, reply, [], { usage: encodeUsage(reply) }),
  error: encodeError,
};

function readPrompt(value: unknown): string | number[] {
  const prompt = Array.isArray(value) && value.length === 1 && typeof value[0] !== "number" ? value[0] : value;
  if (typeof prompt === "string") return prompt;
  return readIds(prompt, "prompt", "one text, or ");
}

/** The prompt's ids lie in each choice, as vLLM has them. */
function encodeChoice(request: WireRequest, head: WireHead, part: WireChoice, index: number, from: StreamPosition) {
  return {
    index,
    text: part.content ?? "",
    logprobs: part.logprobs && encodeLogprobs(part.logprobs, from.characters),
    finish_reason: encodeFinish(part),
    stop_reason: part.stopReason,
    token_ids: request.returnTokenIds ? part.tokenIds : undefined,
    ...(from.tokens === 0 && encodePromptIds(request, head)),
  };
}

/** The older form. Offsets count the tokens' own texts from `offset`, as vLLM's do. */
function encodeLogprobs(tokens: NonNullable<WireChoice["logprobs"]>, offset: number) {
  let end = offset;
  const text_offset = tokens.map(({ token }) => {
    end += token.length;
    return end - token.length;
  });
  return {
    text_offset,
    token_logprobs: tokens.map(({ logprob }) => logprob),
    tokens: tokens.map(({ token }) => token),
    top_logprobs: tokens.map(({ token, logprob }) => ({ [token]: logprob })),
  };
}
