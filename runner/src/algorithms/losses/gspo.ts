import type { PolicyLoss } from "./policy-loss.ts";
import { clippedSurrogate } from "./ppo.ts";

/**
 * GSPO (arXiv 2507.18071), in its token form: PPO's clip of the row's ratio s = exp(mean of logp - old), whose gradient
 * each token takes through its own log-probability, s ∇logp.
 */
export const gspo: PolicyLoss = ({ logp, rowLogRatio, advantages }, spec) =>
  clippedSurrogate(logp.sub(logp.detach()).add(rowLogRatio).clamp(-30, 30).exp(), advantages, spec);
