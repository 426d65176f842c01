import { type AdvantageEstimator, perGroup, sum } from "./estimator.ts";

/** OPO (arXiv 2505.23585): reward minus the baseline of least variance, the group's mean weighted by reply lengths. */
export const opo: AdvantageEstimator = (rollouts) =>
  perGroup(rollouts, (rewards, members) => {
    const tokens = sum(members.map((member) => member.tokens));
    const baseline = sum(members.map((member) => member.tokens * member.reward)) / Math.max(tokens, 1);
    return rewards.map((reward) => reward - baseline);
  });
