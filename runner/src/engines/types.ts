import type { StopReason } from "../agents/types.ts";
import type { EngineRouter } from "./router.ts";
import type { Routes } from "./routes.ts";

/** In training only `temperature` touches the logits. */
export interface SamplingParams {
  temperature: number;
  topP: number;
  topK: number;
  maxTokens: number;
  stopTokenIds: number[];
  seed: number;
  /** The one that was met stays in the ids. */
  stop?: string[];
}

export interface GenerateRequest {
  requestId: string;
  tokenIds: Int32Array | number[];
  /** The lease's, as `synced` and `replica`. */
  version: number | null;
  synced?: number;
  replica?: number;
  sampling: SamplingParams;
}

/** Three arrays of one length. `versions`: the policy version that sampled each token. */
export interface GenerateResult {
  tokenIds: number[];
  logprobs: number[];
  versions: number[];
  stop: Extract<StopReason, "stop" | "length" | "abort">;
  stopString?: string;
  /** Where the engine records them. */
  routes?: Routes;
  /** Tokens that were sampled after the stop string, and taken away. */
  cut?: number;
}

/** For one request; `release` when it has ended, with whether the engine failed: the session then moves. */
export interface EngineLease {
  url: string;
  engine: number;
  /** The policy version of its weights until it is released; null where they may change meanwhile. */
  version: number | null;
  /** The version that was last synced, where `version` is null. */
  synced?: number;
  /** Of the engine's data-parallel ones, whose cache the session has; none where there is but one. */
  replica?: number;
  release(failed?: boolean): void;
}

/** In an agent's thread it asks the controller's. */
export type Router = Pick<EngineRouter, "acquire">;
