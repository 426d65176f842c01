import type { Tensor } from "molt-native";
import { klEstimators } from "../kl.ts";
import type { LossSpec } from "./policy-loss.ts";
import { policyLoss } from "./registry.ts";

/** Each `[T]`, 0 where not trained. `logp` and `entropy` carry gradients. */
export interface ObjectiveInput {
  logp: Tensor;
  entropy: Tensor;
  old: Tensor;
  advantages: Tensor;
  weights: Tensor;
  trained: Tensor;
  /** Null without a KL term. */
  ref: Tensor | null;
}

/** Backward takes `total`; the others are sums over the microbatch's trained tokens. */
export interface Objective {
  total: Tensor;
  policy: Tensor;
  kl: Tensor | null;
  clipped: Tensor | null;
}

/**
 * (Σ policy + β Σ KL - c Σ entropy) / numTokens, the update's trained tokens over all ranks and microbatches:
 * partial losses add up to the same whole however rows are cut. Call inside `scope`.
 */
export function objective(input: ObjectiveInput, spec: LossSpec, numTokens: number): Objective {
  const trained = input.trained.gt(0);
  const total = (values: Tensor) => values.where(trained, 0).sum();
  const { loss, clipped } = policyLoss(spec.name)(input, spec);
  const policy = total(loss.mul(input.weights));
  const kl = input.ref === null ? null : total(klEstimators[spec.kl.estimator](input.logp.sub(input.ref)));
  let sum = policy;
  if (kl !== null) sum = sum.add(kl.mul(spec.kl.coef));
  if (spec.entropyCoef !== 0) sum = sum.sub(total(input.entropy).mul(spec.entropyCoef));
  return {
    total: sum.div(numTokens),
    policy,
    kl,
    clipped: clipped === null ? null : total(input.trained.where(clipped, 0)),
  };
}
