import { type AdvantageEstimator, centred } from "./estimator.ts";

/** FlashREINFORCE: reward minus the mean of the batch's rollouts; nothing is divided. Needs no group. */
export const flashReinforce: AdvantageEstimator = (rollouts) => centred(rollouts.map(({ reward }) => reward));
