import type { Tensor } from "molt-native";
import type { LossSpec, PolicyLoss, PolicyLossOutput } from "./policy-loss.ts";

/** PPO (arXiv 1707.06347) of each token's own ratio. */
export const ppo: PolicyLoss = ({ logp, old, advantages }, spec) =>
  clippedSurrogate(logp.sub(old).clamp(-30, 30).exp(), advantages, spec);

/**
 * -min(ratio A, clip(ratio, 1 - low, 1 + high) A), asymmetric (DAPO, arXiv 2503.14476); with dual clip (arXiv
 * 1912.09729) the surrogate is at least c A where A < 0.
 */
export function clippedSurrogate(
  ratio: Tensor,
  advantages: Tensor,
  { epsClip: [low, high], dualClip }: LossSpec,
): PolicyLossOutput {
  const free = ratio.mul(advantages);
  const clipped = ratio.clamp(1 - low, 1 + high).mul(advantages);
  let surrogate = free.minimum(clipped);
  if (dualClip !== null) {
    surrogate = surrogate.maximum(advantages.mul(dualClip)).where(advantages.lt(0), surrogate);
  }
  return { loss: surrogate.neg(), clipped: clipped.lt(free) };
}
