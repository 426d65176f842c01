export interface ScoredRollout {
  groupId: string;
  /** Finite; clipped to `reward.clip_range`. */
  reward: number;
  /** Trained, over all rows. */
  tokens: number;
}

/** One advantage a rollout, in order, for all its trained tokens. */
export type AdvantageEstimator = (rollouts: readonly ScoredRollout[]) => Float64Array;

/** Not all of one reward, or a baseline leaves nothing to learn from. */
export function hasSignal(rewards: readonly number[]): boolean {
  return rewards.some((reward) => reward !== rewards[0]);
}

/** Groups without signal, singletons too, get exactly 0. */
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

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

export function mean(values: readonly number[]): number {
  return sum(values) / values.length;
}

/**
 * Divides by the population deviation over the batch's trained tokens (variance floor 1e-8). The centre stays: a
 * group's advantages still sum to 0.
 */
export function scaleByDeviation(advantages: Float64Array, rollouts: readonly ScoredRollout[]): Float64Array {
  const tokens = sum(rollouts.map((rollout) => rollout.tokens));
  if (tokens === 0) return advantages;
  const overTokens = (value: (advantage: number) => number) =>
    sum(rollouts.map((rollout, index) => rollout.tokens * value(advantages[index]!))) / tokens;
  const centre = overTokens((advantage) => advantage);
  const variance = overTokens((advantage) => (advantage - centre) ** 2);
  return advantages.map((advantage) => advantage / Math.sqrt(Math.max(variance, 1e-8)));
}
