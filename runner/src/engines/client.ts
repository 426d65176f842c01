import { Pool } from "undici";
import { DeadlineError, deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import type { GenerateRequest, GenerateResult } from "./types.ts";
import { encodeGenerate, parseGenerate, parseVersion } from "./wire.ts";

/** An engine's place in the transfer group, in vLLM's names. `backend`, `prefix` and the timeout are ours. */
export interface TransferInit {
  master_address: string;
  master_port: number;
  /** Rank of this engine; the trainer is 0. */
  rank_offset: number;
  world_size: number;
  backend: "c10d";
  prefix: string;
  timeout_seconds: number;
}

/** The tensors of one update, in the order in which they are broadcast. */
export interface UpdateInfo {
  names: string[];
  dtype_names: string[];
  shapes: number[][];
}

export interface CallOptions {
  timeoutSeconds: number;
  signal?: AbortSignal;
}

export type PauseMode = "abort" | "wait" | "keep";

/** The engine answered with an HTTP error, or not at all (`status` undefined). */
export class EngineError extends RunnerError {
  readonly url: string;
  readonly status?: number;

  constructor(url: string, what: string, options: { status?: number; cause?: unknown } = {}) {
    super(`engine ${url}: ${what}`, { cause: options.cause });
    this.name = "EngineError";
    this.url = url;
    this.status = options.status;
  }
}

/** Connections to one engine: requests beyond them wait in the pool. */
const connectionsPerEngine = 1024;

/**
 * The one client of vLLM's HTTP protocol (reference: vllm.md, sections 1 and 4), whoever serves it. One pool of kept
 * connections an engine; aborting a call closes its connection, which ends the request on the engine.
 */
export class EngineClient {
  private readonly pools = new Map<string, Pool>();
  /** An engine that asks for a key, ours or vLLM's, gets the environment's. */
  private readonly authorization: Record<string, string> = process.env.MOLT_API_KEY
    ? { authorization: `Bearer ${process.env.MOLT_API_KEY}` }
    : {};
  private readonly jsonHeaders = { ...this.authorization, "content-type": "application/json" };

  /** Token ids in; token ids with log-probabilities and policy versions out. */
  async generate(url: string, request: GenerateRequest, options: CallOptions): Promise<GenerateResult> {
    const body = encodeGenerate(request);
    const what = `request ${request.requestId}`;
    const reply = await this.call(url, { method: "POST", path: "/inference/v1/generate", body, what }, options);
    try {
      const { versions, ...rest } = parseGenerate(reply);
      if (versions) return { ...rest, versions };
      // The weights cannot have changed while this request held its lease, so the engine's version now is its version.
      const version = parseVersion(await this.weightVersion(url, options));
      return { ...rest, versions: rest.tokenIds.map(() => version) };
    } catch (error) {
      if (error instanceof EngineError) throw error;
      throw new EngineError(url, `${what}: ${messageOf(error)}`, { cause: error });
    }
  }

  async health(url: string, options: CallOptions): Promise<void> {
    await this.call(url, { method: "GET", path: "/health" }, options);
  }

  /** Name and context length of what the engine serves. */
  async model(url: string, options: CallOptions): Promise<{ id: string; maxModelLen: number }> {
    const reply = await this.call(url, { method: "GET", path: "/v1/models" }, options);
    const { id, max_model_len } = (reply as { data: { id: string; max_model_len: number }[] }).data[0]!;
    return { id, maxModelLen: max_model_len };
  }

  /** `clearCache: false` keeps the key/value cache of requests that `keep` froze. */
  async pause(url: string, mode: PauseMode, clearCache: boolean, options: CallOptions): Promise<void> {
    await this.call(url, { method: "POST", path: `/pause?mode=${mode}&clear_cache=${clearCache}` }, options);
  }

  async resume(url: string, options: CallOptions): Promise<void> {
    await this.call(url, { method: "POST", path: "/resume" }, options);
  }

  /** Full ids, as answers carry them; all without. Partial answers return with stop `abort`. */
  async abortRequests(url: string, requestIds: string[] | null, options: CallOptions): Promise<number> {
    const body = JSON.stringify(requestIds ? { request_ids: requestIds } : {});
    const reply = await this.call(url, { method: "POST", path: "/abort_requests", body }, options);
    return (reply as { aborted: number }).aborted;
  }

  async weightVersion(url: string, options: CallOptions): Promise<string> {
    const reply = await this.call(url, { method: "GET", path: "/weight_info" }, options);
    return (reply as { weight_version: string }).weight_version;
  }

  /** Names the weights that the engine has (the run's first version); a sync names its own. */
  async setWeightVersion(url: string, version: number, options: CallOptions): Promise<void> {
    const body = JSON.stringify({ new_version: String(version) });
    await this.call(url, { method: "POST", path: "/update_weight_version", body }, options);
  }

  async initWeightTransfer(url: string, init: TransferInit, options: CallOptions): Promise<void> {
    const body = JSON.stringify({ init_info: init });
    await this.call(url, { method: "POST", path: "/init_weight_transfer_engine", body }, options);
  }

  async startWeightUpdate(url: string, options: CallOptions): Promise<void> {
    await this.call(url, { method: "POST", path: "/start_weight_update" }, options);
  }

  async updateWeights(url: string, update: UpdateInfo, options: CallOptions): Promise<void> {
    const body = JSON.stringify({ update_info: update });
    await this.call(url, { method: "POST", path: "/update_weights", body }, options);
  }

  /** The checksum of what the engine now holds; null from engines that give none. */
  async finishWeightUpdate(url: string, version: number, options: CallOptions): Promise<string | null> {
    const body = JSON.stringify({ weight_version: String(version) });
    const reply = await this.call(url, { method: "POST", path: "/finish_weight_update", body }, options);
    return (reply as { checksum?: string }).checksum ?? null;
  }

  /** Closes every connection; running calls reject. */
  async close(): Promise<void> {
    await Promise.all([...this.pools.values()].map((pool) => pool.destroy()));
    this.pools.clear();
  }

  private async call(url: string, call: Call, { timeoutSeconds, signal }: CallOptions): Promise<unknown> {
    const controller = new AbortController();
    const what = call.what ?? `${call.method} ${call.path}`;
    const onLate = () =>
      controller.abort(new DeadlineError(`waited ${timeoutSeconds} s for engine ${url} to answer ${what}`));
    const timer = setTimeout(onLate, deadlineMs(timeoutSeconds));
    const onAbort = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", onAbort);
    try {
      signal?.throwIfAborted();
      const { statusCode, body } = await this.pool(url).request({
        method: call.method,
        path: call.path,
        body: call.body,
        headers: call.body === undefined ? this.authorization : this.jsonHeaders,
        signal: controller.signal,
      });
      const text = await body.text();
      if (statusCode !== 200) {
        throw new EngineError(url, `${what}: HTTP ${statusCode}: ${errorMessage(text)}`, { status: statusCode });
      }
      return text === "" ? null : JSON.parse(text);
    } catch (error) {
      if (controller.signal.aborted) throw controller.signal.reason;
      if (error instanceof EngineError) throw error;
      throw new EngineError(url, `${what}: ${messageOf(error)}`, { cause: error });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
    }
  }

  private pool(url: string): Pool {
    let pool = this.pools.get(url);
    if (!pool) {
      // Each call has a deadline of its own; the pool's would only be a second, unnamed one.
      pool = new Pool(url, { connections: connectionsPerEngine, headersTimeout: 0, bodyTimeout: 0 });
      this.pools.set(url, pool);
    }
    return pool;
  }
}

interface Call {
  method: "GET" | "POST";
  path: string;
  body?: string;
  /** As errors call it; the route without. */
  what?: string;
}

/** vLLM's errors are `{"error": {"message"}}`; whatever else answers is quoted. */
function errorMessage(text: string): string {
  try {
    const message = JSON.parse(text).error?.message;
    if (typeof message === "string") return message;
  } catch {
    // Not JSON: a proxy's page, or half an answer.
  }
  return text.slice(0, 300) || "an empty answer";
}
