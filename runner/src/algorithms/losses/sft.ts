import type { PolicyLoss } from "./policy-loss.ts";

/** Cross entropy of the trained tokens. */
export const sft: PolicyLoss = ({ logp }) => ({ loss: logp.neg(), clipped: null });
