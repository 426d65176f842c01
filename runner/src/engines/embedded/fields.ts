import { HttpError, validation } from "./http-error.ts";

/** Reading of request bodies: what is read, what must ask for nothing, what is refused by name. */
export type Json = Record<string, unknown>;

/** Whether a value may be there. What we cannot do is never ignored. */
export type FieldCheck = (value: unknown) => boolean;

/** Only values that ask for nothing. */
export const none: FieldCheck = (value) =>
  value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
export const is =
  (...neutral: unknown[]): FieldCheck =>
  (value) =>
    value === null || neutral.includes(value);
export const any: FieldCheck = () => true;
/** Read, and checked where it is read. */
export const read = any;

/** What a request is read against. */
export interface ServedModel {
  name: string;
  vocabSize: number;
  maxModelLen: number;
  eosTokenIds: number[];
}

/** Sampling of one request, whatever the route. */
export interface Sampling {
  temperature: number;
  topP: number;
  topK: number;
  /** Null where the request leaves it to the route. */
  maxTokens: number | null;
  /** Those of the request and, unless ignored, the model's. */
  stopTokenIds: Set<number>;
  /** Of `stopTokenIds`, those that the request brought: they are its stop reasons. */
  ownStops: Set<number>;
  seed: number | null;
  n: number;
  stop: string[];
  includeStop: boolean;
  skipSpecial: boolean;
  promptLogprobs: boolean;
}

/** Fields that every generating route has, under the same names. */
export const samplingFields: Record<string, FieldCheck> = {
  temperature: read,
  top_p: read,
  top_k: read,
  seed: read,
  n: read,
  stop: read,
  stop_token_ids: read,
  include_stop_str_in_output: read,
  ignore_eos: read,
  skip_special_tokens: read,
  prompt_logprobs: is(0),
  min_p: is(0),
  presence_penalty: is(0),
  frequency_penalty: is(0),
  repetition_penalty: is(1),
  min_tokens: is(0),
  logprob_token_ids: none,
  bad_words: none,
  allowed_token_ids: none,
  logit_bias: none,
  structured_outputs: none,
  thinking_token_budget: none,
  routed_experts_prompt_start: is(0),
  spaces_between_special_tokens: any,
  stream_interval: any,
};

/** Fields of the OpenAI routes, beside their own and those of sampling. */
export const openAiFields: Record<string, FieldCheck> = {
  model: read,
  max_tokens: read,
  stream: read,
  stream_options: read,
  return_token_ids: read,
  return_tokens_as_token_ids: read,
  cache_salt: read,
  priority: is(0),
  echo: is(false),
  response_format: (value) => value === null || (value as Json).type === "text",
  use_beam_search: is(false),
  length_penalty: is(1),
  truncate_prompt_tokens: none,
  kv_transfer_params: none,
  ec_transfer_params: none,
  vllm_xargs: none,
  // They name the request or its sender, and change no answer.
  user: any,
  request_id: any,
  session_id: any,
};

const most = 128;
const maxStops = 16;

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The body, all of whose fields are known and, unless read elsewhere, ask for nothing. */
export function readBody(body: unknown, known: Record<string, FieldCheck>, model: ServedModel): Json {
  if (!isObject(body)) throw validation("body", "dict_type", "Input should be a valid dictionary");
  refuseUnsupported(body, known, "");
  if (body.model !== undefined && body.model !== null && body.model !== model.name) {
    throw new HttpError(404, `The model \`${String(body.model)}\` does not exist.`, "model");
  }
  return body;
}

export function refuseUnsupported(fields: Json, known: Record<string, FieldCheck>, prefix: string): void {
  for (const name in fields) {
    const value = fields[name];
    const isKnown = Object.hasOwn(known, name);
    if (isKnown && known[name]!(value)) continue;
    const what = isKnown ? `${prefix}${name}: ${shown(value)}` : `the field ${prefix}${name}`;
    throw new HttpError(400, `${what} is not supported by the embedded engine`, `${prefix}${name}`);
  }
}

function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? "undefined";
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}

export function readSampling(fields: Json, prefix: string, model: ServedModel): Sampling {
  const number = (name: string, otherwise: number, valid: (value: number) => boolean, range: string) =>
    readNumber(fields, name, otherwise, valid, range, prefix);
  const integer = (least: number, most = Number.MAX_SAFE_INTEGER) => {
    return (value: number) => Number.isSafeInteger(value) && value >= least && value <= most;
  };
  const has = (name: string) => fields[name] !== undefined && fields[name] !== null;
  const ownStops = new Set(readIds(fields, "stop_token_ids", prefix));
  const ignoreEos = readFlag(fields, "ignore_eos", false, prefix);
  const temperature = number("temperature", 1, (value) => value >= 0, "non-negative");
  if (temperature !== 0 && !(temperature >= 1e-4 && temperature <= 1e4)) {
    throw new HttpError(400, "temperature must be 0, or from 1e-4 to 1e4.", `${prefix}temperature`);
  }
  return {
    temperature,
    topP: number("top_p", 1, (value) => value > 0 && value <= 1, "in (0, 1]"),
    topK: Math.max(number("top_k", 0, integer(-1, 2 ** 31 - 1), "-1 or 0 (disable), or at least 1"), 0),
    maxTokens: has("max_tokens") ? number("max_tokens", 1, integer(1), "at least 1") : null,
    stopTokenIds: ignoreEos ? ownStops : new Set([...ownStops, ...model.eosTokenIds]),
    ownStops,
    seed: has("seed") ? number("seed", 0, integer(0), "a non-negative integer below 2^53") : null,
    n: number("n", 1, integer(1, most), `an integer from 1 to ${most}`),
    stop: readStops(fields, prefix),
    includeStop: readFlag(fields, "include_stop_str_in_output", false, prefix),
    skipSpecial: readFlag(fields, "skip_special_tokens", true, prefix),
    promptLogprobs: has("prompt_logprobs"),
  };
}

export function readNumber(
  fields: Json,
  name: string,
  otherwise: number,
  valid: (value: number) => boolean,
  range: string,
  prefix = "",
): number {
  const value = fields[name] ?? otherwise;
  if (typeof value === "number" && valid(value)) return value;
  throw new HttpError(400, `${name} must be ${range}, got ${shown(value)}.`, `${prefix}${name}`);
}

export function readFlag(fields: Json, name: string, otherwise: boolean, prefix = ""): boolean {
  const value = fields[name] ?? otherwise;
  if (typeof value === "boolean") return value;
  throw new HttpError(400, `${name} must be true or false, got ${shown(value)}.`, `${prefix}${name}`);
}

export function readText(fields: Json, name: string, prefix = ""): string | null {
  const value = fields[name] ?? null;
  if (value === null || typeof value === "string") return value;
  throw new HttpError(400, `${name} must be a string, got ${shown(value)}.`, `${prefix}${name}`);
}

/** `{"include_usage": true}` or nothing. */
export function readStreamOptions(body: Json): { stream: boolean; includeUsage: boolean } {
  const stream = readFlag(body, "stream", false);
  const options = body.stream_options ?? {};
  if (!isObject(options)) throw new HttpError(400, "stream_options must be an object.", "stream_options");
  refuseUnsupported(options, { include_usage: read, continuous_usage_stats: is(false) }, "stream_options.");
  return { stream, includeUsage: readFlag(options, "include_usage", false, "stream_options.") };
}

function readIds(fields: Json, name: string, prefix: string): number[] {
  const value = fields[name] ?? [];
  if (Array.isArray(value) && value.every((id) => Number.isSafeInteger(id))) return value;
  throw new HttpError(400, `${name} must be a list of integers.`, `${prefix}${name}`);
}

function readStops(fields: Json, prefix: string): string[] {
  const value = fields.stop ?? [];
  const stops = typeof value === "string" ? [value] : value;
  const fits = (stop: unknown) => typeof stop === "string" && stop !== "";
  if (Array.isArray(stops) && stops.length <= maxStops && stops.every(fits)) return stops;
  throw new HttpError(400, `stop must be a string that is not empty, or up to ${maxStops} of them.`, `${prefix}stop`);
}

/** A prompt of token ids, within the vocabulary, with room for a token. Messages are vLLM's where it has one. */
export function readPrompt(value: unknown, loc: string, { vocabSize, maxModelLen }: ServedModel): Int32Array {
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

/** The OpenAI routes refuse what would be cut short by the context; vLLM's words. */
export function checkRoom(promptLength: number, maxTokens: number, { maxModelLen }: ServedModel): void {
  if (maxTokens <= maxModelLen - promptLength) return;
  throw new HttpError(
    400,
    `'max_tokens' or 'max_completion_tokens' is too large: ${maxTokens}. This model's maximum context length is ` +
      `${maxModelLen} tokens and your request has ${promptLength} input tokens ` +
      `(${maxTokens} > ${maxModelLen} - ${promptLength}).`,
    "max_tokens",
  );
}
