import { type AdvantageEstimator, centred, perGroup, whiten } from "./estimator.ts";

/** REINFORCE++-baseline (arXiv 2501.03262): reward minus the group's mean, divided by the deviation over the batch. */
export const reinforceBaseline: AdvantageEstimator = (rollouts, spec) =>
  whiten(perGroup(rollouts, centred), rollouts, spec);
