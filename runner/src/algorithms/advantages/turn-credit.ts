import { type AdvantageEstimator, perTurn } from "./estimator.ts";
import { reinforceBaseline } from "./reinforce-baseline.ts";

/**
 * Turn-level credit (MT-GRPO, arXiv 2505.11821): each turn's discounted reward to go, minus the mean of that turn over
 * the group, divided by the deviation over the batch.
 */
export const turnCredit: AdvantageEstimator = (rollouts, spec) =>
  perTurn(rollouts, spec.gamma, (turns) => reinforceBaseline(turns, spec) as number[]);
