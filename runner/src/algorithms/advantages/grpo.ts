import { type AdvantageEstimator, centred, perGroup, sum } from "./estimator.ts";

/** GRPO (arXiv 2402.03300): (reward - mean) / (std + 1e-9) in the group, sample deviation (n - 1). */
export const grpo: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards) => {
    const gaps = centred(rewards);
    const deviation = Math.sqrt(sum(gaps.map((gap) => gap ** 2)) / (rewards.length - 1));
    return gaps.map((gap) => gap / (deviation + 1e-9));
  });
