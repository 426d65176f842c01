import { RunnerError } from "../errors.ts";
import type { VersionSpan } from "./embedded/scheduler.ts";
import { parseRoutes } from "./routes.ts";
import type { GenerateRequest, GenerateResult } from "./types.ts";

/**
 * vLLM's `/inference/v1/generate` as bytes. Log-probabilities of both shapes are read: `token: "token_id:123"` (0.31
 * and older) and a numeric `token_id`.
 */

/** A log-probability above it is a fault. */
const roundingOfZero = 1e-6;
/** vLLM's clamp of minus infinity. */
const clampedInfinity = -9999;

interface TokenLogprob {
  token?: string;
  token_id?: number;
  logprob: number;
}

interface GenerateReply {
  choices?: {
    token_ids?: number[];
    finish_reason?: string | null;
    stop_reason?: string | number | null;
    logprobs?: { content?: TokenLogprob[] | null } | null;
    weight_versions?: VersionSpan[] | null;
    routed_experts?: string | null;
  }[];
}

export type ParsedGenerate = Omit<GenerateResult, "versions"> & { versions: number[] | null };

/** Built by hand: typed arrays are joined without a copy. */
export function encodeGenerate({ requestId, tokenIds, version, synced, sampling }: GenerateRequest): string {
  const params = JSON.stringify({
    n: 1,
    temperature: sampling.temperature,
    top_p: sampling.topP,
    top_k: sampling.topK,
    min_p: 0,
    presence_penalty: 0,
    frequency_penalty: 0,
    repetition_penalty: 1,
    max_tokens: sampling.maxTokens,
    stop_token_ids: sampling.stopTokenIds,
    seed: sampling.seed,
    logprobs: 0,
    ...(sampling.stop && { stop: sampling.stop }),
    detokenize: sampling.stop !== undefined,
    skip_special_tokens: false,
  });
  // A prefix is reused by those of its own version alone; one that goes on over a sync keeps its cache.
  const salted = version ?? synced;
  const salt = salted === undefined ? "" : `"cache_salt":"${salted}",`;
  const id = JSON.stringify(requestId);
  return `{"request_id":${id},${salt}"token_ids":[${tokenIds.join()}],"sampling_params":${params}}`;
}

/** Throws unless it is one whole choice whose ids and log-probabilities agree. No sentinel is data. */
export function parseGenerate(reply: unknown): ParsedGenerate {
  const choices = (reply as GenerateReply | null)?.choices;
  const choice = choices?.[0];
  if (choices?.length !== 1 || !choice) throw bad(`${choices?.length ?? "no"} choices instead of one`);
  const tokenIds = choice.token_ids;
  if (!Array.isArray(tokenIds)) throw bad("no token_ids");
  const stop = choice.finish_reason;
  if (stop !== "stop" && stop !== "length" && stop !== "abort") throw bad(`finish_reason ${JSON.stringify(stop)}`);
  return {
    tokenIds,
    logprobs: parseLogprobs(tokenIds, choice.logprobs?.content ?? []),
    versions: choice.weight_versions ? expandSpans(choice.weight_versions, tokenIds.length) : null,
    stop,
    ...(typeof choice.stop_reason === "string" && { stopString: choice.stop_reason }),
    ...(choice.routed_experts && { routes: parseRoutes(choice.routed_experts) }),
  };
}

function parseLogprobs(tokenIds: number[], content: TokenLogprob[]): number[] {
  if (content.length !== tokenIds.length) {
    throw bad(`${content.length} log-probabilities for ${tokenIds.length} tokens`);
  }
  return content.map((entry, index) => {
    const id = entry.token_id ?? Number(/^token_id:(\d+)$/.exec(entry.token ?? "")?.[1] ?? Number.NaN);
    if (id !== tokenIds[index]) {
      const said = entry.token_id ?? entry.token;
      throw bad(`the log-probability at ${index} is of token ${said}, the token there is ${tokenIds[index]}`);
    }
    const { logprob } = entry;
    if (!Number.isFinite(logprob) || logprob === clampedInfinity || logprob > roundingOfZero) {
      throw bad(`the log-probability at ${index} (token ${id}) is ${logprob}`);
    }
    return logprob;
  });
}

function expandSpans(spans: VersionSpan[], length: number): number[] {
  const versions: number[] = [];
  for (const { version, start, end } of spans) {
    if (start !== versions.length || end < start) throw bad(`weight_versions has a gap or overlap at token ${start}`);
    if (!/^\d+$/.test(version)) {
      throw bad(`weight version ${JSON.stringify(version)}, which is no policy version: nobody set it on this engine`);
    }
    for (let index = start; index < end; index++) versions.push(Number(version));
  }
  if (versions.length !== length) throw bad(`weight_versions covers ${versions.length} of ${length} tokens`);
  return versions;
}

/** vLLM's `prompt_logprobs`: null, then for each further token its entry by id. */
export function parsePromptLogprobs(reply: unknown, tokenIds: Int32Array): number[] {
  const entries = (reply as { prompt_logprobs?: (Record<string, { logprob: number }> | null)[] }).prompt_logprobs;
  if (entries?.length !== tokenIds.length) {
    throw bad(`${entries?.length ?? "no"} prompt_logprobs for ${tokenIds.length} tokens`);
  }
  return entries.slice(1).map((entry, index) => {
    const logprob = entry?.[String(tokenIds[index + 1])]?.logprob;
    if (logprob === undefined || !Number.isFinite(logprob) || logprob === clampedInfinity) {
      throw bad(`the prompt log-probability ${logprob} at ${index + 1}`);
    }
    return logprob;
  });
}

export interface EngineLoad {
  running: number;
  waiting: number;
}

/** Of `/metrics`, in Prometheus' text. */
export function parseLoad(metrics: string): EngineLoad {
  const sum = (name: string) => {
    const samples = [...metrics.matchAll(new RegExp(`^vllm:${name}(?:\\{.*\\})? (\\S+)`, "gm"))];
    return samples.reduce((total, [, value]) => total + Number(value), 0);
  };
  return { running: sum("num_requests_running"), waiting: sum("num_requests_waiting") };
}

function bad(what: string): RunnerError {
  return new RunnerError(`the engine's answer has ${what}`);
}
