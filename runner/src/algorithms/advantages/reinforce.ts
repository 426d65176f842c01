import { type AdvantageEstimator, perTurn, whiten } from "./estimator.ts";

/**
 * REINFORCE (Williams 1992) as REINFORCE++ takes it (arXiv 2501.03262): each turn's discounted reward to go, less the
 * batch's mean, divided by the deviation; both over the batch's trained tokens. Needs no group.
 */
export const reinforce: AdvantageEstimator = (rollouts, spec) =>
  perTurn(rollouts, spec.gamma, (turns) => {
    const returns = turns.map(({ reward }) => reward);
    return whiten(returns, turns, spec, true);
  });
