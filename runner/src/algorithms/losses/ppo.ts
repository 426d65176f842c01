import type { PolicyLoss } from "./policy-loss.ts";

/**
 * PPO (arXiv 1707.06347), asymmetric clip (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729): -min(ratio A,
 * clip(ratio, 1 - low, 1 + high) A); where A < 0, the surrogate is at least c A.
 */
export const ppo: PolicyLoss = ({ logp, old, advantages }, { epsClip: [low, high], dualClip }) => {
  const ratio = logp.sub(old).clamp(-30, 30).exp();
  const free = ratio.mul(advantages);
  const clipped = ratio.clamp(1 - low, 1 + high).mul(advantages);
  let surrogate = free.minimum(clipped);
  if (dualClip !== null) {
    surrogate = surrogate.maximum(advantages.mul(dualClip)).where(advantages.lt(0), surrogate);
  }
  return { loss: surrogate.neg(), clipped: clipped.lt(free) };
};
