import type { MoeConfig } from "molt-native";
import { isObject } from "../../data/config-json.ts";
import { badRequest, type HttpError, validation } from "./http-error.ts";

export type Json = Record<string, unknown>;

export function none(value: unknown): boolean {
  return value === null || value === "" || (typeof value === "object" && Object.keys(value as object).length === 0);
}

export interface ServedModel {
  name: string;
  vocabSize: number;
  maxModelLen: number;
  eosTokenIds: number[];
  /** Of a mixture of experts. */
  moe?: MoeConfig | undefined;
}

export type Sampling = ReturnType<typeof readSampling>;

const most = 128;
const maxStops = 16;

function wrong(name: string, range: string, value: unknown, prefix = ""): HttpError {
  const text = JSON.stringify(value) ?? "undefined";
  const shown = text.length > 100 ? `${text.slice(0, 100)}…` : text;
  return badRequest(`${name} must be ${range}, got ${shown}.`, `${prefix}${name}`);
}

export function readSampling(fields: Json, prefix: string, eosTokenIds: number[]) {
  type Valid = (value: number) => boolean;
  const number = <Default>(name: string, otherwise: Default, valid: Valid, range: string): number | Default => {
    const value = fields[name] ?? null;
    if (value === null) return otherwise;
    if (typeof value === "number" && valid(value)) return value;
    throw wrong(name, range, value, prefix);
  };
  const integer = (least: number, most = Number.MAX_SAFE_INTEGER): Valid => {
    return (value) => Number.isSafeInteger(value) && value >= least && value <= most;
  };
  const stopIds = readStopIds(fields, prefix);
  const temperature = number("temperature", 1, (value) => value >= 0, "non-negative");
  if (temperature !== 0 && !(temperature >= 1e-4 && temperature <= 1e4)) {
    throw badRequest("temperature must be 0, or from 1e-4 to 1e4.", `${prefix}temperature`);
  }
  return {
    temperature,
    topP: number("top_p", 1, (value) => value > 0 && value <= 1, "in (0, 1]"),
    topK: Math.max(number("top_k", 0, integer(-1, 2 ** 31 - 1), "-1 or 0 (disable), or at least 1"), 0),
    /** Null: the route's choice. */
    maxTokens: number("max_tokens", null, integer(1), "at least 1"),
    /** With the model's, unless ignored. */
    stopTokenIds: new Set(readFlag(fields, "ignore_eos", false, prefix) ? stopIds : [...stopIds, ...eosTokenIds]),
    /** Those not the model's own. */
    stopReasons: new Set(stopIds.filter((id) => !eosTokenIds.includes(id))),
    seed: number("seed", null, integer(0), "a non-negative integer below 2^53"),
    n: number("n", 1, integer(1, most), `an integer from 1 to ${most}`),
    stop: readStops(fields, prefix),
    includeStop: readFlag(fields, "include_stop_str_in_output", false, prefix),
    skipSpecial: readFlag(fields, "skip_special_tokens", true, prefix),
    promptLogprobs: (fields.prompt_logprobs ?? null) !== null,
  };
}

export function readFlag(fields: Json, name: string, otherwise: boolean, prefix = ""): boolean {
  const value = fields[name] ?? otherwise;
  if (typeof value === "boolean") return value;
  throw wrong(name, "true or false", value, prefix);
}

export function readText(fields: Json, name: string): string | null {
  const value = fields[name] ?? null;
  if (value === null || typeof value === "string") return value;
  throw wrong(name, "a string", value);
}

export function readStreamOptions(body: Json): { stream: boolean; includeUsage: boolean } {
  const stream = readFlag(body, "stream", false);
  const options = body.stream_options ?? {};
  if (!isObject(options)) throw badRequest("stream_options must be an object.", "stream_options");
  if (options.continuous_usage_stats) {
    throw badRequest("only the last chunk has usage.", "stream_options.continuous_usage_stats");
  }
  return { stream, includeUsage: readFlag(options, "include_usage", false, "stream_options.") };
}

export function readSalt(body: Json): string | null {
  const salt = readText(body, "cache_salt");
  if (salt === "") throw badRequest("cache_salt must not be empty.", "cache_salt");
  return salt;
}

function readStopIds(fields: Json, prefix: string): number[] {
  const ids = fields.stop_token_ids ?? [];
  if (Array.isArray(ids) && ids.every(Number.isSafeInteger)) return ids;
  throw badRequest("stop_token_ids must be a list of integers.", `${prefix}stop_token_ids`);
}

function readStops(fields: Json, prefix: string): string[] {
  const value = fields.stop ?? [];
  const stops = typeof value === "string" ? [value] : value;
  const fits = (stop: unknown) => typeof stop === "string" && stop !== "";
  if (Array.isArray(stops) && stops.length <= maxStops && stops.every(fits)) return stops;
  throw badRequest(`stop must be a string that is not empty, or up to ${maxStops} of them.`, `${prefix}stop`);
}

/** Token ids within the vocabulary, with room for a token. Messages are vLLM's where it has one. */
export function readPrompt(value: unknown, loc: string, { vocabSize, maxModelLen }: ServedModel): Int32Array {
  if (value === undefined) throw validation(loc, "missing", "Field required");
  if (!Array.isArray(value)) throw validation(loc, "list_type", "Input should be a valid list");
  if (value.length === 0) {
    const extra = ", 'ctx': {'field_type': 'List', 'min_length': 1, 'actual_length': 0}";
    const message = "List should have at least 1 item after validation, not 0";
    throw validation(loc, "too_short", message, `, 'input': '<list of 0 items>'${extra}`);
  }
  value.forEach((id, index) => {
    const where = `${loc}.${index}`;
    if (!Number.isInteger(id)) throw validation(where, "int_type", "Input should be a valid integer");
    if (id < 0) throw validation(where, "greater_than_equal", "Input should be greater than or equal to 0");
    if (id >= vocabSize) throw badRequest(`Token id ${id} is out of vocabulary`);
  });
  if (value.length > maxModelLen) {
    const fact = `(length ${value.length}) is longer than the maximum model length of ${maxModelLen}.`;
    const advice = "Make sure that `max_model_len` is no smaller than the number of text tokens.";
    throw badRequest(`The decoder prompt ${fact} ${advice}`);
  }
  if (value.length === maxModelLen) {
    throw badRequest(`The prompt fills the maximum model length of ${maxModelLen}: no token can be generated`);
  }
  return Int32Array.from(value);
}

/** OpenAI's routes refuse what the context would cut short; vLLM's words. */
export function checkRoom(promptLength: number, maxTokens: number, { maxModelLen }: ServedModel): void {
  if (maxTokens <= maxModelLen - promptLength) return;
  const message =
    `'max_tokens' or 'max_completion_tokens' is too large: ${maxTokens}. This model's maximum context length is ` +
    `${maxModelLen} tokens and your request has ${promptLength} input tokens ` +
    `(${maxTokens} > ${maxModelLen} - ${promptLength}).`;
  throw badRequest(message, "max_tokens");
}
