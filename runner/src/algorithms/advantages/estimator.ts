import type { Recipe } from "../../recipe/schema.ts";

/** One trained reply. The rewards of a rollout's turns add up to its own. */
export interface ScoredTurn {
  reward: number;
  tokens: number;
  /** One a trained token: what `reward` lost for its KL to the reference, where that is a reward. */
  costs?: readonly number[];
  /** One a trained token, of a critic: the rewards expected from it on. */
  values?: readonly number[];
}

export interface ScoredRollout {
  groupId: string;
  /** Finite: clipped to `reward.clip_range`, then shaped, less the KL penalty where that is a reward. */
  reward: number;
  /** Trained, over all rows. */
  tokens: number;
  /** Those with a trained token, in order. */
  turns: readonly ScoredTurn[];
}

/** Section `algo.advantage`, as far as estimators read it. */
export type AdvantageSpec = Pick<Recipe["algo"]["advantage"], "no_whiten" | "gamma" | "lam" | "pass_k">;

/** Of each rollout in order: one advantage for all its trained tokens; or for each turn one, or one a token. */
export type Advantages = ArrayLike<number | ArrayLike<number | ArrayLike<number>>>;

/** Pure. Finite for every batch, and the same whatever the order of its rollouts. */
export type AdvantageEstimator = (rollouts: readonly ScoredRollout[], spec: AdvantageSpec) => Advantages;

/** Not all of one reward, or a baseline leaves nothing to learn from. */
export function hasSignal(rewards: readonly number[]): boolean {
  return rewards.some((reward) => reward !== rewards[0]);
}

/** Groups without signal, singletons too, get exactly 0. */
export function perGroup(
  rollouts: readonly ScoredRollout[],
  estimate: (rewards: readonly number[], members: readonly ScoredRollout[]) => readonly number[],
): Float64Array {
  const advantages = new Float64Array(rollouts.length);
  const groups = new Map<string, number[]>();
  for (const [index, { groupId }] of rollouts.entries()) groups.set(groupId, [...(groups.get(groupId) ?? []), index]);
  for (const indices of groups.values()) {
    const members = indices.map((index) => rollouts[index]!);
    const rewards = members.map(({ reward }) => reward);
    if (!hasSignal(rewards)) continue;
    for (const [position, value] of estimate(rewards, members).entries()) advantages[indices[position]!] = value;
  }
  return advantages;
}

/**
 * Each turn as a rollout of its own, whose reward is what comes from there on (`gamma` discounts each turn after it),
 * grouped with the same turn of the group's other rollouts.
 */
export function perTurn(
  rollouts: readonly ScoredRollout[],
  gamma: number,
  estimate: (turns: ScoredRollout[]) => ArrayLike<number>,
): Advantages {
  const all = rollouts.flatMap(({ groupId, turns }) =>
    turns.map((turn, k) => {
      const reward = sum(turns.slice(k).map((later, after) => later.reward * gamma ** after));
      return { groupId: `${k} ${groupId}`, reward, tokens: turn.tokens, turns: [turn] };
    }),
  );
  const values = Array.from(estimate(all));
  return rollouts.map(({ turns }) => values.splice(0, turns.length));
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

export function mean(values: readonly number[]): number {
  return sum(values) / values.length;
}

export function centred(rewards: readonly number[]): number[] {
  const centre = mean(rewards);
  return rewards.map((reward) => reward - centre);
}

/**
 * Divides by the population deviation over the batch's trained tokens (variance floor 1e-8). The centre stays unless
 * `centre` is asked for: a group's advantages still sum to 0.
 */
export function whiten(
  advantages: ArrayLike<number>,
  rollouts: readonly { tokens: number }[],
  { no_whiten: off }: AdvantageSpec,
  centre = false,
): number[] {
  const values = Array.from(advantages);
  const tokens = sum(rollouts.map((rollout) => rollout.tokens));
  if (tokens === 0 || off) return values;
  const overTokens = (all: number[]) => sum(all.map((value, index) => value * rollouts[index]!.tokens)) / tokens;
  const average = overTokens(values);
  const deviation = Math.sqrt(Math.max(overTokens(values.map((value) => (value - average) ** 2)), 1e-8));
  return values.map((value) => (value - (centre ? average : 0)) / deviation);
}
