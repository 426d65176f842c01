import { shorten } from "../../lists.ts";
import { hasSignal } from "../advantages/estimator.ts";

/** Why clipped rewards take their group out of the batch; null keeps it. */
export type GroupFilter = (rewards: readonly number[]) => string | null;

const signal: GroupFilter = (rewards) => (hasSignal(rewards) ? null : rewards.length === 1 ? "singleton" : "no_signal");

/**
 * `algo.dynamic_filtering`. A dropped group leaves the loss and its denominator: the batch shrinks, or by `refill`
 * takes another in its place while `algo.refill_budget` lasts.
 */
export const groupFilters = { off: () => null, drop: signal, refill: signal } satisfies Record<string, GroupFilter>;

/** How many groups have which mean reward, for when none passes. */
export function solveRates(rewards: readonly number[]): string {
  const counts = new Map<string, number>();
  for (const reward of rewards.toSorted((a, b) => a - b).map((mean) => mean.toFixed(2))) {
    counts.set(reward, (counts.get(reward) ?? 0) + 1);
  }
  const parts = [...counts].map(([reward, count]) => `${reward} x ${count}`);
  return `mean reward by group: ${shorten(parts, 12)}`;
}
