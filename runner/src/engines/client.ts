import { setTimeout as sleep } from "node:timers/promises";
import { Pool } from "undici";
import { DeadlineError, withDeadline } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { checkRoutes } from "./routes.ts";
import type { GenerateRequest, GenerateResult } from "./types.ts";
import { type EngineLoad, encodeGenerate, parseGenerate, parseLoad, parsePromptLogprobs } from "./wire.ts";

/** In vLLM's names. */
interface TransferPlace {
  master_address: string;
  master_port: number;
  /** The trainer is 0. */
  rank_offset: number;
  world_size: number;
}

/** The embedded engine's; all further names are ours. */
export interface TransferInit extends TransferPlace {
  backend: "c10d";
  prefix: string;
  timeout_seconds: number;
}

interface PackedInit extends TransferPlace {
  packed: boolean;
  packed_buffer_size_bytes: number;
  packed_num_buffers: number;
}

/** In broadcast order. */
export interface UpdateInfo {
  names: string[];
  dtype_names: string[];
  shapes: number[][];
}

/** The reason of an abort after which a running `generate` resolves with what was sampled so far. */
export const keepPartial = Symbol("keep what was sampled");

export interface CallOptions {
  timeoutSeconds: number;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

export type PauseMode = "abort" | "wait" | "keep";

/** Names its engine. */
export class EngineError extends RunnerError {
  /** HTTP's, of an answer that refuses. */
  readonly status?: number;
  constructor(url: string, what: string, more: { cause?: unknown; status?: number } = {}) {
    super(`engine ${url}: ${what}`, { cause: more.cause });
    this.status = more.status;
  }
}

/** A request that has yet to arrive cannot be ended: it is asked again. */
export const abortEveryMs = 50;

/** Else vLLM takes the replica that has least to do, whatever cache it has. */
export function toReplica(replica: number | undefined): Record<string, string> | undefined {
  return replica === undefined ? undefined : { "x-data-parallel-rank": String(replica) };
}

type Route = `${"GET" | "POST"} /${string}`;

/** One token must be sampled. */
const scorePrompt = { temperature: 1, max_tokens: 1, prompt_logprobs: 0, logprobs: 0, detokenize: false };

/** Requests beyond them wait in the pool. */
const connectionsPerEngine = 1024;

/**
 * vLLM's HTTP protocol (reference: vllm.md, sections 1 and 4), whoever serves it. Aborting a call closes its
 * connection, which ends the request there.
 */
export class EngineClient {
  private readonly pools = new Map<string, Pool>();
  private readonly authorization: Record<string, string> = process.env.MOLT_API_KEY
    ? { authorization: `Bearer ${process.env.MOLT_API_KEY}` }
    : {};
  private readonly jsonHeaders = { ...this.authorization, "content-type": "application/json" };

  /** A token's version is the request's, whose weights its lease holds; where they may change, the engine's spans. */
  async generate(url: string, request: GenerateRequest, options: CallOptions): Promise<GenerateResult> {
    const what = `request ${request.requestId}`;
    const { version, replica } = request;
    const reply = await this.untilAborted(url, request, { ...options, headers: toReplica(replica) }, what);
    try {
      const { versions, ...rest } = parseGenerate(reply);
      if (rest.routes) checkRoutes(rest.routes, request.tokenIds.length + rest.tokenIds.length);
      if (version === null && versions) return { ...rest, versions };
      if (version === null) throw new RunnerError("no weight_versions, which train.partial_rollout keep needs");
      const other = versions?.find((one) => one !== version);
      if (other === undefined) return { ...rest, versions: rest.tokenIds.map(() => version) };
      throw new RunnerError(`a token of version ${other} in the engine's answer to a lease of version ${version}`);
    } catch (error) {
      throw asEngineError(url, what, error);
    }
  }

  /** After an abort with `keepPartial` the engine is asked to end the request, until its answer is here. */
  private async untilAborted(url: string, request: GenerateRequest, options: CallOptions, what: string) {
    const { signal, timeoutSeconds } = options;
    let answered = false;
    const end = async () => {
      while (signal?.reason === keepPartial && !answered) {
        // Its failure shows in the request's own.
        await this.abortRequests(url, [request.requestId], { timeoutSeconds }).catch(() => {});
        await sleep(abortEveryMs);
      }
    };
    signal?.addEventListener("abort", end);
    end();
    try {
      return await this.call(url, "POST /inference/v1/generate", options, encodeGenerate(request), what);
    } finally {
      answered = true;
      signal?.removeEventListener("abort", end);
    }
  }

  /** They end with what they have; null: all. */
  async abortRequests(url: string, requestIds: string[] | null, options: CallOptions): Promise<void> {
    const ids = requestIds?.map((id) => `generate-tokens-${id}`);
    await this.call(url, "POST /abort_requests", options, { request_ids: ids });
  }

  async health(url: string, options: CallOptions): Promise<void> {
    await this.call(url, "GET /health", options);
  }

  /** `clearCache: false` keeps the key/value cache of frozen requests. */
  async pause(url: string, mode: PauseMode, clearCache: boolean, options: CallOptions): Promise<void> {
    await this.call(url, `POST /pause?mode=${mode}&clear_cache=${clearCache}`, options);
  }

  async resume(url: string, options: CallOptions): Promise<void> {
    await this.call(url, "POST /resume", options);
  }

  async weightVersion(url: string, options: CallOptions): Promise<string> {
    return (await this.call<{ weight_version: string }>(url, "GET /weight_info", options)).weight_version;
  }

  async setWeightVersion(url: string, version: number, options: CallOptions): Promise<void> {
    await this.call(url, "POST /update_weight_version", options, { new_version: String(version) });
  }

  /** Rejects when its weights are called otherwise. */
  async expectVersion(url: string, version: number, options: CallOptions): Promise<void> {
    const said = await this.weightVersion(url, options);
    if (said !== String(version)) throw new EngineError(url, `says version ${said} after version ${version} was sent`);
  }

  /** Runs a method of the engine's workers. */
  async collectiveRpc(url: string, method: string, kwargs: object, options: CallOptions): Promise<void> {
    await this.call(url, "POST /collective_rpc", options, { method, kwargs });
  }

  /** Log-probabilities of the tokens after the first, at temperature 1. */
  async promptLogprobs(url: string, tokenIds: Int32Array, options: CallOptions): Promise<number[]> {
    const reply = await this.ask(url, { token_ids: [...tokenIds], sampling_params: scorePrompt }, options);
    return parsePromptLogprobs(reply, tokenIds);
  }

  /** `/inference/v1/generate` as it is, for what is not a request of a run. */
  ask(url: string, body: object, options: CallOptions): Promise<unknown> {
    return this.call(url, "POST /inference/v1/generate", options, body);
  }

  /** Requests that run and that wait, summed over the engine's replicas. */
  async load(url: string, options: CallOptions): Promise<EngineLoad> {
    return parseLoad(await this.text(url, "GET /metrics", options));
  }

  async version(url: string, options: CallOptions): Promise<string> {
    return (await this.call<{ version: string }>(url, "GET /version", options)).version;
  }

  /** Processes that take part in a transfer. */
  async worldSize(url: string, options: CallOptions): Promise<number> {
    return (await this.call<{ world_size: number }>(url, "GET /get_world_size", options)).world_size;
  }

  async initWeightTransfer(url: string, init: TransferInit | PackedInit, options: CallOptions): Promise<void> {
    await this.call(url, "POST /init_weight_transfer_engine", options, { init_info: init });
  }

  async startWeightUpdate(url: string, options: CallOptions): Promise<void> {
    await this.call(url, "POST /start_weight_update", options);
  }

  async updateWeights(url: string, update: UpdateInfo, options: CallOptions): Promise<void> {
    await this.call(url, "POST /update_weights", options, { update_info: update });
  }

  /** The weights' checksum; null from engines that give none. */
  async finishWeightUpdate(url: string, version: number, options: CallOptions): Promise<string | null> {
    const body = { weight_version: String(version) };
    const reply = await this.call<{ checksum?: string }>(url, "POST /finish_weight_update", options, body);
    return reply.checksum ?? null;
  }

  /** Running calls reject. */
  async close(): Promise<void> {
    await Promise.all([...this.pools.values()].map((pool) => pool.destroy()));
    this.pools.clear();
  }

  private async call<T>(...given: Parameters<EngineClient["text"]>): Promise<T> {
    const [url, route, , , what = route] = given;
    const text = await this.text(...given);
    try {
      return JSON.parse(text || "null");
    } catch (error) {
      throw asEngineError(url, what, error);
    }
  }

  /** `what` is how errors call it; `body` is JSON, or becomes it. */
  private async text(
    url: string,
    route: Route,
    { timeoutSeconds, signal, headers }: CallOptions,
    body?: object | string,
    what: string = route,
  ): Promise<string> {
    const cancel = new AbortController();
    const taken = () => signal?.aborted && signal.reason !== keepPartial;
    const onAbort = () => taken() && cancel.abort(signal!.reason);
    signal?.addEventListener("abort", onAbort);
    try {
      if (taken()) throw signal!.reason;
      const text = typeof body === "object" ? JSON.stringify(body) : body;
      const answer = this.send(url, route, text, cancel.signal, headers);
      const said = await withDeadline(answer, timeoutSeconds, `engine ${url} to answer ${what}`);
      if (said.statusCode === 200) return said.text;
      const { statusCode: status } = said;
      throw new EngineError(url, `${what}: HTTP ${status}: ${errorMessage(said.text)}`, { status });
    } catch (error) {
      if (taken()) throw signal!.reason;
      throw asEngineError(url, what, error);
    } finally {
      // Closes the connection at a deadline.
      cancel.abort();
      signal?.removeEventListener("abort", onAbort);
    }
  }

  private async send(url: string, route: Route, body: string | undefined, signal: AbortSignal, more = {}) {
    const [method, path] = route.split(" ") as ["GET" | "POST", string];
    const headers = { ...(body === undefined ? this.authorization : this.jsonHeaders), ...more };
    const answer = await this.pool(url).request({ method, path, body, headers, signal });
    return { statusCode: answer.statusCode, text: await answer.body.text() };
  }

  private pool(url: string): Pool {
    // Each call has a deadline of its own.
    const options = { connections: connectionsPerEngine, headersTimeout: 0, bodyTimeout: 0 };
    const pool = this.pools.get(url) ?? new Pool(url, options);
    this.pools.set(url, pool);
    return pool;
  }
}

/** Errors that name their engine stay. */
function asEngineError(url: string, what: string, error: unknown): unknown {
  if (error instanceof EngineError || error instanceof DeadlineError) return error;
  return new EngineError(url, `${what}: ${messageOf(error)}`, { cause: error });
}

/** vLLM's are `{"error": {"message"}}`; others are quoted. */
function errorMessage(text: string): string {
  try {
    const message = JSON.parse(text).error?.message;
    if (typeof message === "string") return message;
  } catch {
    // A proxy's page, or half an answer.
  }
  return text.slice(0, 300) || "an empty answer";
}
