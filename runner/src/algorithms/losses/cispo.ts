import type { PolicyLoss } from "./policy-loss.ts";

/**
 * CISPO (arXiv 2506.13585): -min(ratio, 1 + high) A logp, the ratio without gradient: a clipped token still learns, at
 * a bounded weight. No lower bound.
 */
export const cispo: PolicyLoss = ({ logp, old, advantages }, { epsClip: [, high] }) => {
  const ratio = logp.detach().sub(old).clamp(-30, 30).exp();
  const weights = ratio.clamp(null, 1 + high).mul(advantages);
  return { loss: weights.mul(logp).neg(), clipped: ratio.gt(1 + high) };
};
