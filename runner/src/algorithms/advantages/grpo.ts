import { type AdvantageEstimator, mean, perGroup, sum } from "./estimator.ts";

/** GRPO (arXiv 2402.03300): (reward - mean) / (std + 1e-9) in the group, sample deviation (n - 1). */
export const grpo: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards) => {
    const centre = mean(rewards);
    const squares = sum(rewards.map((reward) => (reward - centre) ** 2));
    const deviation = Math.sqrt(squares / (rewards.length - 1));
    return rewards.map((reward) => (reward - centre) / (deviation + 1e-9));
  });
