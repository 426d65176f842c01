import { type AdvantageEstimator, perGroup } from "./estimator.ts";

/** RLOO (arXiv 2402.14740): reward minus the mean reward of the group's other rollouts. */
export const rloo: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards) => {
    const total = rewards.reduce((sum, reward) => sum + reward, 0);
    return rewards.map((reward) => reward - (total - reward) / (rewards.length - 1));
  });
