import { readIds, readRequest } from "./wires/fields.ts";
import { encodeError, encodeUsage } from "./wires/openai.ts";
import { type Wire, WireError } from "./wires/types.ts";

/** vLLM's `/inference/v1/generate`: ids in, ids with log-probabilities out. The model's own ids end a reply. */
export const tokensWire: Wire = {
  parse(value) {
    const { sampling_params: sampling = {}, ...rest } = (value ?? {}) as Record<string, unknown>;
    const { body, request } = readRequest({ ...rest, ...(sampling as object) }, "tokens");
    return { ...request, prompt: readIds(body.token_ids, "token_ids"), logprobs: true };
  },

  answer: (_, reply) => ({
    request_id: reply.id,
    model: reply.model,
    created: reply.created,
    usage: encodeUsage(reply),
    choices: reply.choices.map(({ tokenIds, logprobs, stop, stopString }, index) => ({
      index,
      finish_reason: stop === "stop" ? "stop" : "length",
      stop_reason: stopString,
      token_ids: tokenIds,
      logprobs: { content: logprobs!.map(({ logprob }, at) => ({ token: `token_id:${tokenIds[at]}`, logprob })) },
    })),
  }),

  events() {
    throw new WireError(400, "a request by ids is not streamed", "stream");
  },

  error: encodeError,
};
