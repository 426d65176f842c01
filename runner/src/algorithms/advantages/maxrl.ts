import { type AdvantageEstimator, mean, perGroup } from "./estimator.ts";

/**
 * MaxRL (arXiv 2602.02710): (reward - mean) / mean in the group, so that the expected gradient is the likelihood's, to
 * the order of the group's size. For rewards of at least 0; without a success (mean 0, or below) exactly 0.
 */
export const maxrl: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards) => {
    const centre = mean(rewards);
    return rewards.map((reward) => (centre > 0 ? (reward - centre) / centre : 0));
  });
