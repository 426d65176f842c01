import type { StopReason } from "../agents/types.ts";

/** Sampling of one request. In training only `temperature` touches the logits; eval is free. */
export interface SamplingParams {
  temperature: number;
  topP: number;
  topK: number;
  maxTokens: number;
  stopTokenIds: number[];
  seed: number;
}

export interface GenerateRequest {
  requestId: string;
  tokenIds: Int32Array | number[];
  sampling: SamplingParams;
}

/** One length for the three arrays. `versions` is the policy version that sampled each token. */
export interface GenerateResult {
  tokenIds: number[];
  logprobs: number[];
  versions: number[];
  stop: Extract<StopReason, "stop" | "length" | "abort">;
}

/** An engine to send one request to; `release` when its answer is complete, whatever the answer. */
export interface EngineLease {
  url: string;
  engine: number;
  release(): void;
}

/** Decides which engine serves a session's next request, and holds requests while weights change. */
export interface Router {
  /** Waits while the engines are held; rejects at `timeoutSeconds` or on abort. One session stays on one engine. */
  acquire(sessionId: string, timeoutSeconds: number, signal?: AbortSignal): Promise<EngineLease>;
}
