import { type AdvantageEstimator, perGroup, sum } from "./estimator.ts";

/** RLOO (arXiv 2402.14740): reward minus the mean reward of the group's other rollouts. */
export const rloo: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards) => {
    const total = sum(rewards);
    return rewards.map((reward) => reward - (total - reward) / (rewards.length - 1));
  });
