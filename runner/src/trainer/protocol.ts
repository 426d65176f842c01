/**
 * What controller and ranks say to each other, over `ws` with msgpackr. The rank connects, says `hello` with its rank
 * and the run's token, then answers requests in order: `{ id, method, params }` → `{ id, result }` or `{ id, error }`.
 */
import type { DecoderConfig, TensorLocation, UnitDescription } from "molt-native";

export interface ModelSpec {
  config: DecoderConfig;
  units: UnitDescription[];
  /** Tensors to read, or null for seeded random weights. */
  weights: TensorLocation[] | null;
  seed: number;
}

export interface OptimizerSpec {
  betas: [number, number];
  eps: number;
  weightDecay: number;
  maxNorm: number;
}

/** The constants of a policy loss: `reference` in `algorithms/` gives the formulas. */
export interface LossSpec {
  /** A key of the policy-loss registry, or "sft". */
  name: string;
  epsClip: [number, number];
  dualClip: number | null;
  entropyCoef: number;
  kl: { coef: number; estimator: "k1" | "k2" | "k3" };
  correction: { level: "off" | "token" | "seq" | "geo"; mode: "mask" | "clip" | "trunc"; threshold: [number, number] };
}

export interface InitParams {
  worldSize: number;
  /** c10d's store for the training group. */
  store: { host: string; port: number };
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
  /** Trainable tokens of the update over all ranks: the loss's denominator. */
  numTokens: number;
  learningRate: number;
}

/** Sums over this rank's trainable tokens (divide by tokens over all ranks), and what the step did. */
export interface UpdateResult {
  sums: Record<string, number>;
  gradientNorm: number;
  /** Set when the gradient was not finite: nothing was updated. */
  nonFinite: string[] | null;
}

/** Method → [params, result]. */
export interface RankMethods {
  init: [InitParams, { parameters: number; restored?: string }];
  putRows: [{ rows: TrainRow[] }, null];
  /** Forward without gradient; keeps the result on the rank as the rows' `old` or `ref` log-probabilities. */
  score: [{ microbatches: string[][]; as: "old" | "ref" }, null];
  /** One value a token of each row (0 on untrained tokens). */
  putAdvantages: [{ ids: string[]; advantages: Float32Array[] }, null];
  update: [UpdateParams, UpdateResult];
  dropRows: [{ ids: string[] }, null];
  /** Log-probabilities of stored rows, for tests and the log-probability gap. */
  logprobs: [{ ids: string[] }, { logprobs: Float32Array[] }];
  /** Rank 0 joins the transfer group as its rank 0; the others do nothing. */
  connectEngines: [{ host: string; port: number; worldSize: number; prefix: string; timeoutMs: number }, null];
  broadcastWeights: [Record<string, never>, { checksum: string }];
  disconnectEngines: [Record<string, never>, null];
  /** Writes `rank<r>.safetensors` into an existing directory. */
  saveCheckpoint: [{ directory: string }, { file: string; stepCount: number }];
  loadCheckpoint: [{ directory: string }, { stepCount: number }];
  /** Rank 0 writes `model.safetensors` into an existing directory. */
  exportWeights: [{ directory: string }, null];
}
