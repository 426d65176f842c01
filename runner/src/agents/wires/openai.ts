import type { TextWire, WireChoice, WireEvent, WireHead, WireReply, WireRequest } from "./types.ts";

/** A whole answer, or one chunk of a stream. */
export function encodeBody(object: string, { id, created, model }: WireHead, choices: object[], more: object = {}) {
  return { id, object, created, model, choices, ...more };
}

/** The chunks, then the usage where it is asked, then the closing word. */
export function encodeEvents(wire: TextWire, request: WireRequest, reply: WireReply, chunks: object[]): WireEvent[] {
  const usage = request.includeUsage ? [wire.usage(reply)] : [];
  return [...chunks, ...usage, "[DONE]"].map((data) => ({ data }));
}

/** Where they are asked. */
export function encodePromptIds({ returnTokenIds }: WireRequest, { promptTokenIds }: WireHead) {
  return { prompt_token_ids: returnTokenIds ? promptTokenIds : undefined };
}

/** Whatever cut a reply off is a length to OpenAI. */
export function encodeFinish({ stop }: WireChoice): "stop" | "length" | null {
  return stop === null || stop === "stop" ? stop : "length";
}

/** The prompt once, however many choices. */
export function encodeUsage({ promptTokenIds, choices }: WireReply) {
  const prompt_tokens = promptTokenIds.length;
  const completion_tokens = choices.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}

export function encodeError(status: number, message: string, param: string | null): object {
  const type = status === 429 ? "rate_limit_error" : status < 500 ? "invalid_request_error" : "server_error";
  // By it agents know that they must compact.
  const code = message.includes("maximum context length") ? "context_length_exceeded" : null;
  return { error: { message, type, param, code } };
}

/** As the chat and Responses routes say them. */
export function encodeLogprobs(tokens: NonNullable<WireChoice["logprobs"]>) {
  return tokens.map(({ token, logprob }) => ({ token, logprob, bytes: [...Buffer.from(token)], top_logprobs: [] }));
}
