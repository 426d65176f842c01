import { type AdvantageEstimator, type AdvantageSpec, type ScoredRollout, sum, whiten } from "./estimator.ts";

/**
 * Generalized advantage estimation (arXiv 1506.02438): `tokenAdvantages` of a critic's values, less their mean over the
 * batch's trained tokens, divided by the deviation. Needs no group.
 */
export const gae: AdvantageEstimator = (rollouts, spec) => {
  const given = rollouts.map((rollout) => tokenAdvantages(rollout, spec));
  const tokens = given.flat(2);
  const ones = tokens.map(() => ({ tokens: 1 }));
  const whitened = whiten(tokens, ones, spec, true).values();
  return given.map((turns) => turns.map((turn) => turn.map(() => whitened.next().value!)));
};

/**
 * A list a turn over its trained tokens, one after the other through all turns (what lies between is no step):
 * δ_t = r_t + γ V_(t+1) - V_t and A_t = δ_t + γ λ A_(t+1), with nothing after the last. r_t is minus a token's own
 * KL cost, plus at the turn's last the turn's reward before costs. A_t + V_t is what the value is trained towards.
 */
export function tokenAdvantages({ turns }: ScoredRollout, { gamma, lam }: AdvantageSpec): number[][] {
  let [next, after] = [0, 0];
  const reversed = turns.toReversed().map(({ reward, tokens, values, costs = [] }) => {
    const advantages: number[] = new Array(tokens);
    for (let t = tokens - 1; t >= 0; t--) {
      const own = t === tokens - 1 ? reward + sum(costs) : 0;
      after = own - (costs[t] ?? 0) + gamma * next - values![t]! + gamma * lam * after;
      next = values![t]!;
      advantages[t] = after;
    }
    return advantages;
  });
  return reversed.reverse();
}
