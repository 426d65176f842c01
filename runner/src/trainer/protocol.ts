/**
 * Over `ws` in `encoding.ts`'s form. A rank connects, says `hello` with its rank and the run's token, then answers in
 * order: `{ id, method, params }` → `{ id, result }` or `{ id, error }`.
 */
import type { DecoderConfig, TensorLocation, UnitDescription } from "molt-native";
import type { LossSpec } from "../algorithms/losses/policy-loss.ts";
import type { UpdateMetrics } from "../algorithms/metrics.ts";

export type { LossSpec } from "../algorithms/losses/policy-loss.ts";

export interface ModelSpec {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Null: seeded random. */
  weights: TensorLocation[] | null;
  seed: number;
  /** Of computing; weights are float32. */
  dtype: "float32" | "bfloat16";
  /** `full`, the default: backward recomputes the layers. */
  gradientCheckpoint?: "full" | "none";
}

export interface OptimizerSpec {
  betas: [number, number];
  eps: number;
  weightDecay: number;
  /** Of the gradient's L2 norm. */
  maxNorm: number;
}

export interface InitParams {
  worldSize: number;
  /** c10d's store, served by rank 0; `timeoutMs` bounds each collective. */
  store: { host: string; port: number; timeoutMs: number };
  policy: ModelSpec;
  /** Null without a KL term. */
  ref: ModelSpec | null;
  optimizer: OptimizerSpec;
  loss: LossSpec;
  threads: number;
}

/** One leaf segment of a rollout, as in `Segment`. */
export interface TrainRow {
  id: string;
  tokens: Int32Array;
  mask: Uint8Array;
  logprobs: Float32Array;
  /** 1 where not sampled. */
  temperatures: Float32Array;
}

export interface UpdateParams {
  /** Row ids of this rank's microbatches. Every rank has as many; an empty one runs a zero-weight dummy. */
  microbatches: string[][];
  /** Trainable tokens over all ranks: the loss's denominator, above 0. */
  numTokens: number;
  learningRate: number;
}

/** Metrics are over this rank's trainable tokens. */
export interface UpdateResult extends UpdateMetrics {
  gradientNorm: number;
  /** Parameters, where the gradient was not finite: nothing was updated. */
  nonFinite: string[] | null;
}

/** Method → [params, result]. */
export interface RankMethods {
  init: [InitParams, undefined];
  putRows: [{ rows: TrainRow[] }, undefined];
  /** Forward without gradient; kept as the rows' `old` or `ref` log-probabilities. */
  score: [{ microbatches: string[][]; as: "old" | "ref" }, undefined];
  /** One value a token (0 on untrained ones). */
  putAdvantages: [{ ids: string[]; advantages: Float32Array[] }, undefined];
  update: [UpdateParams, UpdateResult];
  dropRows: [{ ids: string[] }, undefined];
  /** Of stored rows, in one microbatch. Collective. */
  logprobs: [{ ids: string[] }, { logprobs: Float32Array[] }];
  /** Rank 0 joins as the group's rank 0 and serves its store; others do nothing. */
  connectEngines: [{ host: string; port: number; worldSize: number; prefix: string; timeoutMs: number }, undefined];
  broadcastWeights: [Record<string, never>, { checksum: string }];
  disconnectEngines: [Record<string, never>, undefined];
  /** Of the weights. Collective. */
  checksum: [Record<string, never>, { checksum: string }];
  /** `rank<r>.safetensors`, in an existing directory. */
  saveCheckpoint: [{ directory: string }, { file: string; stepCount: number }];
  loadCheckpoint: [{ directory: string }, { stepCount: number }];
  /** Rank 0 writes `model.safetensors`, in an existing directory. */
  exportWeights: [{ directory: string }, undefined];
}

export type RankMethod = keyof RankMethods;

export interface Hello {
  rank: number;
  token: string;
}

export interface Request<M extends RankMethod = RankMethod> {
  id: number;
  method: M;
  params: RankMethods[M][0];
}

export interface Response {
  id: number;
  result?: unknown;
  error?: string;
}
