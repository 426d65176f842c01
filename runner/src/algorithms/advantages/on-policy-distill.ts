import type { AdvantageEstimator } from "./estimator.ts";

/**
 * On-policy distillation (GKD, arXiv 2306.13649; MiniLLM, 2306.08543): minus each token's own cost, which is
 * β (logp - teacher's logp): the gradient of the reverse KL, token by token. Reads no reward, needs no group.
 */
export const onPolicyDistill: AdvantageEstimator = (rollouts) =>
  rollouts.map(({ turns }) => turns.map(({ costs }) => costs!.map((cost) => -cost)));
