import { RunnerError } from "../../errors.ts";
import type { SequenceOutput, SequenceParams } from "./scheduler.ts";

/** An error as vLLM answers it. */
export class HttpError extends RunnerError {
  readonly status: number;
  readonly param: string | null;

  constructor(status: number, message: string, param: string | null = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** What a request is read against. */
export interface ServedModel {
  name: string;
  vocabSize: number;
  maxModelLen: number;
  eosTokenIds: number[];
}

export interface ParsedRequest {
  requestId: string | null;
  /** Log-probabilities are wanted in the answer. */
  logprobs: boolean;
  params: Omit<SequenceParams, "seed"> & { seed: number | null };
}

type Json = Record<string, unknown>;

const none = (value: unknown) => value === null || (typeof value === "object" && Object.keys(value).length === 0);
const is = (neutral: unknown) => (value: unknown) => value === neutral || value === null;
const any = () => true;

/** Fields that are read below. The rest must have a value that asks for nothing; what we cannot do is never ignored. */
const read = any;

const bodyFields: Record<string, (value: unknown) => boolean> = {
  token_ids: read,
  sampling_params: read,
  request_id: read,
  model: read,
  stream: is(false),
  stream_options: none,
  // No cache is shared between requests, so there is nothing that a salt could keep apart.
  cache_salt: any,
  priority: is(0),
  features: none,
  content_parts: none,
  kv_transfer_params: none,
  ec_transfer_params: none,
  token_offsets: none,
  assistant_tokens_mask: none,
  output_mode: is("tokens"),
  return_token_ids: is(false),
  reasoning_ended: none,
  reasoning_parser_kwargs: none,
};

const samplingFields: Record<string, (value: unknown) => boolean> = {
  temperature: read,
  top_p: read,
  top_k: read,
  max_tokens: read,
  seed: read,
  stop_token_ids: read,
  ignore_eos: read,
  logprobs: is(0),
  n: is(1),
  min_p: is(0),
  presence_penalty: is(0),
  frequency_penalty: is(0),
  repetition_penalty: is(1),
  min_tokens: is(0),
  prompt_logprobs: none,
  logprob_token_ids: none,
  flat_logprobs: is(false),
  stop: none,
  bad_words: none,
  allowed_token_ids: none,
  logit_bias: none,
  structured_outputs: none,
  thinking_token_budget: none,
  extra_args: none,
  routed_experts_prompt_start: is(0),
  // Answers carry no text, only ids.
  detokenize: any,
  skip_special_tokens: any,
  spaces_between_special_tokens: any,
  include_stop_str_in_output: any,
  stream_interval: any,
  skip_reading_prefix_cache: any,
};

/** Reads and checks a request. Messages and statuses are vLLM's where it has one. */
export function parseRequest(body: unknown, model: ServedModel): ParsedRequest {
  if (!isObject(body)) throw validation("body", "dict_type", "Input should be a valid dictionary");
  refuseUnsupported(body, bodyFields, "");
  const sampling = body.sampling_params;
  if (sampling === undefined) throw validation("body.sampling_params", "missing", "Field required");
  if (!isObject(sampling)) throw validation("body.sampling_params", "dict_type", "Input should be a valid dictionary");
  refuseUnsupported(sampling, samplingFields, "sampling_params.");
  if (typeof body.model === "string" && body.model !== model.name) {
    throw new HttpError(404, `The model \`${body.model}\` does not exist.`, "model");
  }
  const prompt = parsePrompt(body.token_ids, model);
  const number = (name: string, otherwise: number, valid: (value: number) => boolean, range: string): number => {
    const value = sampling[name] ?? otherwise;
    if (typeof value === "number" && valid(value)) return value;
    throw new HttpError(400, `${name} must be ${range}, got ${JSON.stringify(value)}.`, `sampling_params.${name}`);
  };
  const integer = (least: number) => (value: number) => Number.isSafeInteger(value) && value >= least;
  const room = model.maxModelLen - prompt.length;
  const topK = number("top_k", 0, integer(-1), "-1 or 0 (disable), or at least 1");
  const hasSeed = sampling.seed !== undefined && sampling.seed !== null;
  return {
    requestId: typeof body.request_id === "string" ? body.request_id : null,
    logprobs: sampling.logprobs === 0,
    params: {
      prompt,
      temperature: number("temperature", 1, (value) => value >= 0, "non-negative"),
      topP: number("top_p", 1, (value) => value > 0 && value <= 1, "in (0, 1]"),
      topK: Math.max(topK, 0),
      maxTokens: number("max_tokens", room, integer(1), "at least 1"),
      stopTokenIds: parseStops(sampling, model),
      seed: hasSeed ? number("seed", 0, integer(0), "a non-negative integer below 2^53") : null,
    },
  };
}

function refuseUnsupported(fields: Json, known: Record<string, (value: unknown) => boolean>, prefix: string): void {
  for (const [name, value] of Object.entries(fields)) {
    if (known[name]?.(value)) continue;
    const what = name in known ? `${prefix}${name}: ${JSON.stringify(value)}` : `the field ${prefix}${name}`;
    throw new HttpError(400, `${what} is not supported by the embedded engine`, `${prefix}${name}`);
  }
}

function parsePrompt(value: unknown, { vocabSize, maxModelLen }: ServedModel): Int32Array {
  const loc = "body.token_ids";
  if (value === undefined) throw validation(loc, "missing", "Field required");
  if (!Array.isArray(value)) throw validation(loc, "list_type", "Input should be a valid list");
  if (value.length === 0) {
    const extra = ", 'ctx': {'field_type': 'List', 'min_length': 1, 'actual_length': 0}";
    const message = "List should have at least 1 item after validation, not 0";
    throw validation(loc, "too_short", message, `, 'input': '<list of 0 items>'${extra}`);
  }
  for (let index = 0; index < value.length; index++) {
    const id = value[index];
    if (!Number.isInteger(id)) throw validation(`${loc}.${index}`, "int_type", "Input should be a valid integer");
    if (id < 0) {
      throw validation(`${loc}.${index}`, "greater_than_equal", "Input should be greater than or equal to 0");
    }
    if (id >= vocabSize) throw new HttpError(400, `Token id ${id} is out of vocabulary`);
  }
  if (value.length > maxModelLen) {
    throw new HttpError(
      400,
      `The decoder prompt (length ${value.length}) is longer than the maximum model length of ${maxModelLen}. ` +
        "Make sure that `max_model_len` is no smaller than the number of text tokens.",
    );
  }
  if (value.length === maxModelLen) {
    throw new HttpError(400, `The prompt fills the maximum model length of ${maxModelLen}: no token can be generated`);
  }
  return Int32Array.from(value);
}

function parseStops({ stop_token_ids: ids = [], ignore_eos: ignoreEos }: Json, model: ServedModel): Set<number> {
  if (ids !== null && !(Array.isArray(ids) && ids.every((id) => Number.isInteger(id)))) {
    throw new HttpError(400, "stop_token_ids must be a list of integers.", "sampling_params.stop_token_ids");
  }
  return new Set([...((ids as number[] | null) ?? []), ...(ignoreEos === true ? [] : model.eosTokenIds)]);
}

function validation(loc: string, type: string, message: string, rest = ""): HttpError {
  return new HttpError(
    400,
    `1 validation error:\n  {'type': '${type}', 'loc': '${loc}', 'msg': '${message}'${rest}}`,
    loc,
  );
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * The answer's JSON, keys as vLLM 0.32 gives them. Built by hand: it is the server's hot path. `rank` is null, as the
 * sampler does not rank.
 */
export function encodeAnswer(
  requestId: string,
  request: ParsedRequest,
  output: SequenceOutput,
  model: ServedModel,
): string {
  const { prompt, stopTokenIds } = request.params;
  const { tokenIds, logprobs, finish } = output;
  const last = tokenIds.at(-1);
  const stoppedBy = finish === "stop" && last !== undefined && stopTokenIds.has(last) ? last : null;
  const stopReason = stoppedBy === null || model.eosTokenIds.includes(stoppedBy) ? null : stoppedBy;
  const content = tokenIds.map((id, index) => {
    const entry = `{"token_id":${id},"logprob":${logprobs[index]},"rank":null`;
    return `${entry},"top_logprobs":[${entry}}]}`;
  });
  const total = prompt.length + tokenIds.length;
  return (
    `{"request_id":${JSON.stringify(requestId)},"model":${JSON.stringify(model.name)},` +
    `"created":${Math.floor(Date.now() / 1000)},"usage":{"prompt_tokens":${prompt.length},"total_tokens":${total},` +
    `"completion_tokens":${tokenIds.length},"prompt_tokens_details":null,"completion_tokens_details":null},` +
    `"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,` +
    `"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens",` +
    `"choices":[{"index":0,"finish_reason":"${finish}","stop_reason":${stopReason},"token_ids":[${tokenIds.join()}],` +
    `"routed_experts":null,"sampling_mask":null,"weight_versions":${JSON.stringify(output.versions)},` +
    `"logprobs":${request.logprobs ? `{"content":[${content.join()}]}` : "null"}}]}`
  );
}
