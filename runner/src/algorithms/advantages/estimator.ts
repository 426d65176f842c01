/** What an estimator sees of one rollout. */
export interface ScoredRollout {
  groupId: string;
  /** Finite; already clipped to `reward.clip_range`. */
  reward: number;
  /** Trained tokens over all rows of the rollout. */
  tokens: number;
}

/** One advantage a rollout, in the order given; every trained token of the rollout gets it. Nothing here sees rows. */
export type AdvantageEstimator = (rollouts: readonly ScoredRollout[]) => Float64Array;

/** Two rollouts at least, not all of one reward: otherwise a baseline leaves nothing to learn from. */
export function hasSignal(rewards: readonly number[]): boolean {
  return rewards.some((reward) => reward !== rewards[0]);
}

/** Applies `estimate` to the rewards of each group; a group without signal, and a singleton, give exactly 0. */
export function perGroup(
  rollouts: readonly ScoredRollout[],
  estimate: (rewards: readonly number[]) => readonly number[],
): Float64Array {
  const advantages = new Float64Array(rollouts.length);
  const groups = new Map<string, number[]>();
  rollouts.forEach(({ groupId }, index) => {
    groups.set(groupId, [...(groups.get(groupId) ?? []), index]);
  });
  for (const members of groups.values()) {
    const rewards = members.map((index) => rollouts[index]!.reward);
    if (!hasSignal(rewards)) continue;
    const values = estimate(rewards);
    members.forEach((index, position) => {
      advantages[index] = values[position]!;
    });
  }
  return advantages;
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Divides by the population deviation over all trained tokens of the batch (variance floor 1e-8), without moving the
 * centre: a group's advantages still sum to 0.
 */
export function scaleByDeviation(advantages: Float64Array, rollouts: readonly ScoredRollout[]): Float64Array {
  const tokens = rollouts.reduce((sum, rollout) => sum + rollout.tokens, 0);
  if (tokens === 0) return advantages;
  const overTokens = (value: (advantage: number) => number) =>
    rollouts.reduce((sum, rollout, index) => sum + rollout.tokens * value(advantages[index]!), 0) / tokens;
  const centre = overTokens((advantage) => advantage);
  const variance = overTokens((advantage) => (advantage - centre) ** 2);
  return advantages.map((advantage) => advantage / Math.sqrt(Math.max(variance, 1e-8)));
}
