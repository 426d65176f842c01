/**
 * What controller and ranks say to each other, over `ws` in `encoding.ts`'s form. The rank connects, says `hello` with
 * its rank and the run's token, then answers requests in order: `{ id, method, params }` → `{ id, result }` or
 * `{ id, error }`.
 */
import type { DecoderConfig, TensorLocation, UnitDescription } from "molt-native";
import type { LossSpec } from "../algorithms/losses/policy-loss.ts";

export type { LossSpec } from "../algorithms/losses/policy-loss.ts";

export interface ModelSpec {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Tensors to read, or null for seeded random weights. */
  weights: TensorLocation[] | null;
  seed: number;
  /** What it computes in; its weights are float32. */
  dtype: "float32" | "bfloat16";
}

export interface OptimizerSpec {
  betas: [number, number];
  eps: number;
  weightDecay: number;
  /** Bound of the gradient's L2 norm. */
  maxNorm: number;
}

export interface InitParams {
  worldSize: number;
  /** c10d's store for the training group, served by rank 0; `timeoutMs` bounds each collective. */
  store: { host: string; port: number; timeoutMs: number };
  policy: ModelSpec;
  /** Null without a KL term. */
  ref: ModelSpec | null;
  optimizer: OptimizerSpec;
  loss: LossSpec;
  threads: number;
}

/** A training row: one leaf segment of a rollout. `tokens`, `mask` and `logprobs` as in `Segment`. */
export interface TrainRow {
  id: string;
  tokens: Int32Array;
  mask: Uint8Array;
  logprobs: Float32Array;
  /** Temperature of each token's sampling, 1 where not sampled. */
  temperatures: Float32Array;
}

export interface UpdateParams {
  /** Row ids of each microbatch of this rank. Every rank has as many; an empty one runs a zero-weight dummy. */
  microbatches: string[][];
  /** Trainable tokens of the update over all ranks: the loss's denominator, above 0. */
  numTokens: number;
  learningRate: number;
}

/** What the step did, and metrics over this rank's trainable tokens. */
export interface UpdateResult {
  /** Divided by the tokens over all ranks they are means. */
  sums: Record<string, number>;
  maxima: Record<string, number>;
  gradientNorm: number;
  /** Names of parameters, set when the gradient was not finite: nothing was updated. */
  nonFinite: string[] | null;
}

/** Method → [params, result]. */
export interface RankMethods {
  init: [InitParams, { parameters: number }];
  putRows: [{ rows: TrainRow[] }, null];
  /** Forward without gradient; keeps the result on the rank as the rows' `old` or `ref` log-probabilities. */
  score: [{ microbatches: string[][]; as: "old" | "ref" }, null];
  /** One value a token of each row (0 on untrained tokens). */
  putAdvantages: [{ ids: string[]; advantages: Float32Array[] }, null];
  update: [UpdateParams, UpdateResult];
  dropRows: [{ ids: string[] }, null];
  /** Log-probabilities of stored rows, in one microbatch, for tests and the log-probability gap. Collective. */
  logprobs: [{ ids: string[] }, { logprobs: Float32Array[] }];
  /** Rank 0 joins the transfer group as its rank 0 and serves its store; the others do nothing. */
  connectEngines: [{ host: string; port: number; worldSize: number; prefix: string; timeoutMs: number }, null];
  broadcastWeights: [Record<string, never>, { checksum: string }];
  disconnectEngines: [Record<string, never>, null];
  /** Hash of the weights. Collective. */
  checksum: [Record<string, never>, { checksum: string }];
  /** Writes `rank<r>.safetensors` into an existing directory. */
  saveCheckpoint: [{ directory: string }, { file: string; stepCount: number }];
  loadCheckpoint: [{ directory: string }, { stepCount: number }];
  /** Rank 0 writes `model.safetensors` into an existing directory. */
  exportWeights: [{ directory: string }, null];
}

export type RankMethod = keyof RankMethods;

/** First message of a rank. */
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
