import { hasSignal } from "../advantages/estimator.ts";

/** Why clipped rewards take their group out of the batch; null keeps it. */
export type GroupFilter = (rewards: readonly number[]) => string | null;

/** `algo.dynamic_filtering`. A dropped group leaves the loss and its denominator. */
export const groupFilters = {
  off: () => null,
  drop: (rewards) => (hasSignal(rewards) ? null : rewards.length === 1 ? "singleton" : "no_signal"),
} satisfies Record<string, GroupFilter>;

export type DynamicFiltering = keyof typeof groupFilters;
