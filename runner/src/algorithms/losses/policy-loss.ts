import type { Tensor } from "molt-native";
import type { CorrectionSpec } from "../corrections/correction.ts";
import type { KlSpec } from "../kl.ts";

/** The constants of a policy loss. */
export interface LossSpec {
  /** A key of `policyLosses`. */
  name: string;
  epsClip: [number, number];
  /** Bound c > 1 on the loss of tokens with a negative advantage, or null. */
  dualClip: number | null;
  entropyCoef: number;
  kl: KlSpec;
  correction: CorrectionSpec;
}

/** Each `[T]`; 0 in every slot that is not trained. Only `logp` carries a gradient. */
export interface PolicyLossInput {
  logp: Tensor;
  old: Tensor;
  advantages: Tensor;
}

/** `loss` `[T]`; `clipped` `[T]`, where the clipped term is the one taken (null where a loss has no clip). */
export interface PolicyLossOutput {
  loss: Tensor;
  clipped: Tensor | null;
}

/** Per-token loss, before correction weights, mask and aggregation, which are the same for every loss. */
export type PolicyLoss = (input: PolicyLossInput, spec: LossSpec) => PolicyLossOutput;
