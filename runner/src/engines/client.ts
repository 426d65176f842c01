import { Pool } from "undici";
import { DeadlineError, withDeadline } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import type { GenerateRequest, GenerateResult } from "./types.ts";
import { encodeGenerate, parseGenerate, parseVersion } from "./wire.ts";

/** In vLLM's names; `backend`, `prefix` and the timeout are ours. */
export interface TransferInit {
  master_address: string;
  master_port: number;
  /** The trainer is 0. */
  rank_offset: number;
  world_size: number;
  backend: "c10d";
  prefix: string;
  timeout_seconds: number;
}

/** In broadcast order. */
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

/** An HTTP error, or no answer (`status` undefined). */
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

type Route = `${"GET" | "POST"} /${string}`;

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

  async generate(url: string, request: GenerateRequest, options: CallOptions): Promise<GenerateResult> {
    const what = `request ${request.requestId}`;
    const reply = await this.call(url, "POST /inference/v1/generate", options, encodeGenerate(request), what);
    try {
      const { versions, ...rest } = parseGenerate(reply);
      if (versions) return { ...rest, versions };
      // The weights cannot have changed under this request's lease: the engine's version now is its version.
      const version = parseVersion(await this.weightVersion(url, options));
      return { ...rest, versions: rest.tokenIds.map(() => version) };
    } catch (error) {
      throw asEngineError(url, what, error);
    }
  }

  async health(url: string, options: CallOptions): Promise<void> {
    await this.call(url, "GET /health", options);
  }

  async model(url: string, options: CallOptions): Promise<{ id: string; maxModelLen: number }> {
    const { data } = await this.call<{ data: { id: string; max_model_len: number }[] }>(url, "GET /v1/models", options);
    return { id: data[0]!.id, maxModelLen: data[0]!.max_model_len };
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

  /** For the run's first version; a sync names its own. */
  async setWeightVersion(url: string, version: number, options: CallOptions): Promise<void> {
    await this.call(url, "POST /update_weight_version", options, { new_version: String(version) });
  }

  async initWeightTransfer(url: string, init: TransferInit, options: CallOptions): Promise<void> {
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

  /** `what` is how errors call it; `body` is JSON, or becomes it. */
  private async call<T>(
    url: string,
    route: Route,
    { timeoutSeconds, signal }: CallOptions,
    body?: object | string,
    what: string = route,
  ): Promise<T> {
    const cancel = new AbortController();
    const onAbort = () => cancel.abort(signal?.reason);
    signal?.addEventListener("abort", onAbort);
    try {
      signal?.throwIfAborted();
      const answer = this.send(url, route, typeof body === "object" ? JSON.stringify(body) : body, cancel.signal);
      const { statusCode, text } = await withDeadline(answer, timeoutSeconds, `engine ${url} to answer ${what}`);
      if (statusCode === 200) return JSON.parse(text || "null");
      throw new EngineError(url, `${what}: HTTP ${statusCode}: ${errorMessage(text)}`, { status: statusCode });
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      throw asEngineError(url, what, error);
    } finally {
      // Closes the connection at a deadline.
      cancel.abort();
      signal?.removeEventListener("abort", onAbort);
    }
  }

  private async send(url: string, route: Route, body: string | undefined, signal: AbortSignal) {
    const [method, path] = route.split(" ") as ["GET" | "POST", string];
    const headers = body === undefined ? this.authorization : this.jsonHeaders;
    const answer = await this.pool(url).request({ method, path, body, headers, signal });
    return { statusCode: answer.statusCode, text: await answer.body.text() };
  }

  private pool(url: string): Pool {
    let pool = this.pools.get(url);
    if (!pool) {
      // Each call has a deadline of its own.
      pool = new Pool(url, { connections: connectionsPerEngine, headersTimeout: 0, bodyTimeout: 0 });
      this.pools.set(url, pool);
    }
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
