import { type AdvantageEstimator, mean, perGroup, scaleByDeviation } from "./estimator.ts";

/** REINFORCE++-baseline (arXiv 2501.03262): reward minus the group's mean, divided by the deviation over the batch. */
export const reinforceBaseline: AdvantageEstimator = (rollouts) => {
  const centred = perGroup(rollouts, (rewards) => {
    const baseline = mean(rewards);
    return rewards.map((reward) => reward - baseline);
  });
  return scaleByDeviation(centred, rollouts);
};
