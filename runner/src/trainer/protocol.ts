/**
 * Over `ws` in `encoding.ts`'s form. A rank connects, says `hello` with its rank and the run's token, then answers in
 * order: `{ id, method, params }` → `{ id, result }` or `{ id, error }`.
 */
import type { ModelOptions, TensorLocation } from "molt-native";
import type { Segment } from "../agents/types.ts";
import type { LossSpec } from "../algorithms/losses/policy-loss.ts";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import type { RankTrainer } from "./rank-trainer.ts";

export type { LossSpec } from "../algorithms/losses/policy-loss.ts";

export interface ModelSpec extends Omit<ModelOptions, "group" | "trainable"> {
  /** Null: seeded random. */
  weights: TensorLocation[] | null;
  seed: number;
}

export interface OptimizerSpec {
  betas: [number, number];
  eps: number;
  weightDecay: number;
  /** Of the gradient's L2 norm. */
  maxNorm: number;
}

export interface CriticParams {
  model: ModelSpec;
  optimizer: OptimizerSpec;
  valueClip: number | null;
}

/** Neighbouring ranks that share each row, and that the experts are spread over; each divides all ranks. */
export interface MeshSpec {
  contextSize: number;
  expertSize: number;
}

/** What only a mixture of experts has. */
export interface MixtureSpec {
  /** Weight of the balance loss, of each row by its trained tokens. */
  balanceCoef: number;
  /** Rows go through the experts that they were sampled by. */
  replaysRoutes: boolean;
}

export interface InitParams {
  worldSize: number;
  /** c10d's store, served by rank 0; `timeoutMs` bounds each collective. */
  store: { host: string; port: number; timeoutMs: number };
  mesh: MeshSpec;
  policy: ModelSpec;
  /** Null without a KL term; `base` is what the policy's adapters are laid on. */
  ref: ModelSpec | "base" | null;
  optimizer: OptimizerSpec;
  /** Null but for estimators that need one. */
  critic: CriticParams | null;
  loss: LossSpec;
  mixture: MixtureSpec;
}

/** One leaf segment of a rollout. */
export interface TrainRow extends Pick<Segment, "tokens" | "mask" | "logprobs" | "routes"> {
  id: string;
  /** 1 where not sampled. */
  temperatures: Float32Array;
}

export interface UpdateParams {
  /** Row ids of this rank's microbatches. Every rank has as many; an empty one runs a zero-weight dummy. */
  microbatches: string[][];
  /** Trainable tokens over all ranks: the loss's denominator, above 0. */
  numTokens: number;
  /** Null: the policy stands still. */
  learningRate: number | null;
  /** Null without a critic. */
  criticLearningRate: number | null;
  /** Of the KL term, where the loss has it. */
  klCoef: number;
  /** Where routes are replayed, of one microbatch also what sampler and trainer differ by without. */
  measuresLive?: boolean;
}

/** Metrics are over this rank's trainable tokens. */
export interface UpdateResult extends UpdateMetrics {
  /** Null where the model was not trained. */
  gradientNorm: number | null;
  criticGradientNorm: number | null;
  /** Parameters, where the gradient was not finite: nothing was updated. */
  nonFinite: string[] | null;
}

/** Method → [params, result]. */
export type RankMethods = {
  [M in Exclude<keyof RankTrainer, "close">]: [
    Parameters<RankTrainer[M]> extends [infer P] ? P : Record<string, never>,
    Awaited<ReturnType<RankTrainer[M]>>,
  ];
};

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
