import { sum } from "./advantages/estimator.ts";

/** Rollouts of one update; `tokens` are trained ones. */
type Counted = { groupId: string; tokens: number };

/**
 * Length-aware weighting (arXiv 2509.07558): length^-alpha, 1 on the average over trained tokens. From 0, every token
 * alike, to 1, every rollout alike.
 */
export function lengthWeights(rollouts: readonly { tokens: number }[], alpha: number): number[] {
  const tokens = sum(rollouts.map((rollout) => rollout.tokens));
  const scale = tokens / sum(rollouts.map((rollout) => rollout.tokens && rollout.tokens ** (1 - alpha)));
  return rollouts.map((rollout) => scale / Math.max(rollout.tokens, 1) ** alpha);
}

/**
 * `actor.loss_agg_mode`: what each token of a rollout counts, 1 on the average over the update's tokens. The loss stays
 * a sum over tokens divided by their number: it becomes the mean of rollouts' means, or of prompts' means.
 */
export const aggregations = {
  "token-mean": (rollouts) => rollouts.map(() => 1),
  "seq-mean-token-mean": (rollouts) => lengthWeights(rollouts, 1),
  "prompt-mean-token-mean": (rollouts) => {
    const byGroup = new Map<string, number>();
    for (const { groupId, tokens } of rollouts) byGroup.set(groupId, (byGroup.get(groupId) ?? 0) + tokens);
    const tokens = sum([...byGroup.values()]) / byGroup.size;
    return rollouts.map(({ groupId }) => tokens / byGroup.get(groupId)!);
  },
} satisfies Record<string, (rollouts: readonly Counted[]) => number[]>;

export type Aggregation = keyof typeof aggregations;
