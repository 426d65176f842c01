import type { Tensor } from "molt-native";
import type { CorrectionSpec } from "../corrections/correction.ts";
import type { KlSpec } from "../kl.ts";

export interface LossSpec {
  /** A key of `policyLosses`, or a file whose default export is one. */
  name: string;
  epsClip: [number, number];
  /** Bound c > 1 where the advantage is negative. */
  dualClip: number | null;
  entropyCoef: number;
  kl: KlSpec;
  correction: CorrectionSpec;
}

/** Each `[T]`, 0 where not trained. Only `logp` carries a gradient. */
export interface PolicyLossInput {
  logp: Tensor;
  old: Tensor;
  advantages: Tensor;
  /** Mean of logp - old over the trained tokens of a token's row, without gradient. */
  rowLogRatio: Tensor;
}

/** Each `[T]`; `clipped`: where the clipped term is taken (null: no clip). */
export interface PolicyLossOutput {
  loss: Tensor;
  clipped: Tensor | null;
}

/** Per token, before correction weights, mask and aggregation. */
export type PolicyLoss = (input: PolicyLossInput, spec: LossSpec) => PolicyLossOutput;
