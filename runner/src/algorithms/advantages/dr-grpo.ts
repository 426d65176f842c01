import { type AdvantageEstimator, centred, perGroup } from "./estimator.ts";

/** Dr. GRPO (arXiv 2503.20783): reward minus the group's mean; a deviation would favour easy and hard prompts. */
export const drGrpo: AdvantageEstimator = (rollouts) => perGroup(rollouts, centred);
