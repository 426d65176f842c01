import type { PolicyLoss } from "./policy-loss.ts";

/** -ratio A, the importance-weighted policy gradient; nothing is clipped. */
export const importance: PolicyLoss = ({ logp, old, advantages }) => {
  return { loss: logp.sub(old).clamp(-30, 30).exp().mul(advantages).neg(), clipped: null };
};
