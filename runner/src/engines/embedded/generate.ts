import { randomBytes } from "node:crypto";
import type { FastifyInstance } from "fastify";
import {
  type Answering,
  createdNow,
  encodePromptLogprobs,
  readSalt,
  respond,
  type ServerContext,
  textTokenizer,
  usageOf,
  withSeed,
} from "./answers.ts";
import { type Choice, type ChoicesRequest, stopReasonOf } from "./choices.ts";
import {
  any,
  type FieldCheck,
  is,
  isObject,
  none,
  read,
  readBody,
  readFlag,
  readPrompt,
  readSampling,
  readStreamOptions,
  readText,
  refuseUnsupported,
  type ServedModel,
  samplingFields,
} from "./fields.ts";
import { validation } from "./http-error.ts";
import type { VersionSpan } from "./scheduler.ts";

const bodyFields: Record<string, FieldCheck> = {
  token_ids: read,
  sampling_params: read,
  request_id: read,
  model: read,
  stream: read,
  stream_options: read,
  cache_salt: read,
  output_mode: is("tokens", "text"),
  return_token_ids: read,
  priority: is(0),
  features: none,
  content_parts: none,
  kv_transfer_params: none,
  ec_transfer_params: none,
  token_offsets: none,
  assistant_tokens_mask: none,
  reasoning_ended: none,
  reasoning_parser_kwargs: none,
};

const paramFields: Record<string, FieldCheck> = {
  ...samplingFields,
  max_tokens: read,
  logprobs: is(0),
  flat_logprobs: is(false),
  extra_args: none,
  skip_reading_prefix_cache: is(false),
  // Whether an answer carries text is the output mode's matter.
  detokenize: any,
};

/** A request of `/inference/v1/generate`, read and checked; its tokenizer comes later. */
interface GenerateCall extends ChoicesRequest {
  logprobs: boolean;
  stream: boolean;
  includeUsage: boolean;
  withText: boolean;
  returnTokenIds: boolean;
}

/** vLLM's route of tokens in and tokens out (reference: vllm.md, section 1). */
export function addGenerate(app: FastifyInstance, context: ServerContext): void {
  app.post("/inference/v1/generate", (http, reply) => {
    const call = readCall(http.body, http.headers["x-request-id"] as string | undefined, context);
    const how = answering(call, context.model);
    if (!call.withText && !call.sampling.promptLogprobs && call.sampling.stop.length === 0) {
      return respond(reply, context, call, how);
    }
    return textTokenizer(context).then((tokenizer) => {
      call.tokenizer = tokenizer;
      respond(reply, context, call, how);
    });
  });
}

function readCall(value: unknown, headerId: string | undefined, context: ServerContext): GenerateCall {
  const { model } = context;
  const body = readBody(value, bodyFields, model);
  const params = body.sampling_params;
  if (params === undefined) throw validation("body.sampling_params", "missing", "Field required");
  if (!isObject(params)) throw validation("body.sampling_params", "dict_type", "Input should be a valid dictionary");
  refuseUnsupported(params, paramFields, "sampling_params.");
  const prompt = readPrompt(body.token_ids, "body.token_ids", model);
  const sampling = withSeed(readSampling(params, "sampling_params.", model), context);
  const id = headerId ?? readText(body, "request_id") ?? randomBytes(8).toString("hex");
  return {
    id: `generate-tokens-${id}`,
    prompts: [prompt],
    sampling,
    maxTokens: [sampling.maxTokens ?? model.maxModelLen - prompt.length],
    cacheSalt: readSalt(body),
    tokenizer: null,
    tokenTexts: false,
    logprobs: params.logprobs === 0,
    withText: body.output_mode === "text",
    returnTokenIds: readFlag(body, "return_token_ids", false),
    ...readStreamOptions(body),
  };
}

function answering(call: GenerateCall, model: ServedModel): Answering {
  const mode = `"output_mode":"${call.withText ? "text" : "tokens"}"`;
  const chunk = (usage: unknown, choices: string) =>
    `{"request_id":${JSON.stringify(call.id)},"usage":${JSON.stringify(usage)},${mode},"choices":[${choices}]}`;
  return {
    whole: (choices) => {
      if (!call.sampling.promptLogprobs) return encodeWhole(call, choices, model, mode, "null");
      return encodePromptLogprobs(choices[0]!, call.tokenizer).then((scores) =>
        encodeWhole(call, choices, model, mode, JSON.stringify(scores)),
      );
    },
    stream: call.stream
      ? {
          opening: [],
          delta: (choice, from, to, finish) =>
            chunk(null, encodeChoice(call, choice, model, { from, to, isChunk: true, isLast: finish !== null })),
          usage: call.includeUsage ? (choices) => chunk(usageOf(call, choices), "") : null,
        }
      : null,
  };
}

/** The answer's JSON, keys as vLLM 0.32 gives them. Built by hand: it is the server's hot path. */
function encodeWhole(
  call: GenerateCall,
  choices: Choice[],
  model: ServedModel,
  mode: string,
  promptLogprobs: string,
): string {
  const { prompt_tokens, total_tokens, completion_tokens } = usageOf(call, choices);
  const promptIds = call.withText && call.returnTokenIds ? `[${call.prompts[0]!.join()}]` : "null";
  const encoded = choices.map((choice) => {
    const to = choice.output.tokenIds.length;
    return encodeChoice(call, choice, model, { from: 0, to, isChunk: false, isLast: true });
  });
  return (
    `{"request_id":${JSON.stringify(call.id)},"model":${JSON.stringify(model.name)},"created":${createdNow()},` +
    `"usage":{"prompt_tokens":${prompt_tokens},"total_tokens":${total_tokens},` +
    `"completion_tokens":${completion_tokens},"prompt_tokens_details":null,"completion_tokens_details":null},` +
    `"prompt_logprobs":${promptLogprobs},"prompt_token_id_logprobs":null,` +
    `"prompt_token_ids":${promptIds},"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,` +
    `"ec_transfer_params":null,${mode},"choices":[${encoded.join()}]}`
  );
}

interface Part {
  from: number;
  to: number;
  isChunk: boolean;
  isLast: boolean;
}

/** Tokens `from..to` of a choice; `rank` is null, as the sampler does not rank. */
function encodeChoice(call: GenerateCall, choice: Choice, model: ServedModel, part: Part): string {
  const { output, text } = choice;
  const ids = part.isChunk ? output.tokenIds.slice(part.from, part.to) : output.tokenIds;
  const reason = part.isLast ? JSON.stringify(stopReasonOf(choice, call.sampling, model)) : "null";
  const versions: VersionSpan[] | null = part.isLast ? output.versions : null;
  const content = ids.map((id, index) => {
    const entry = `{"token_id":${id},"logprob":${output.logprobs[part.from + index]},"rank":null`;
    return `${entry},"top_logprobs":[${entry}}]}`;
  });
  const shown = call.withText
    ? `"text":${JSON.stringify(part.isChunk ? text!.release(part.isLast) : text!.text)},`
    : "";
  const withIds = !call.withText || call.returnTokenIds;
  return (
    `{"index":${choice.index},"finish_reason":${part.isLast ? `"${output.finish}"` : "null"},"stop_reason":${reason},` +
    `"token_ids":${withIds ? `[${ids.join()}]` : "null"},"routed_experts":null,"sampling_mask":null,` +
    `"weight_versions":${JSON.stringify(versions)},${shown}` +
    `"logprobs":${call.logprobs ? `{"content":[${content.join()}]}` : "null"}}`
  );
}
