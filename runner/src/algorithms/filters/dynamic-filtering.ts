import { hasSignal } from "../advantages/estimator.ts";

/** Why a group leaves the batch, given its clipped rewards, or null to keep it. */
export type GroupFilter = (rewards: readonly number[]) => string | null;

/** `algo.dynamic_filtering`. A dropped group leaves the loss and its denominator: the batch shrinks. */
export const groupFilters = {
  off: () => null,
  drop: (rewards) => (hasSignal(rewards) ? null : rewards.length === 1 ? "singleton" : "no_signal"),
} satisfies Record<string, GroupFilter>;

export type DynamicFiltering = keyof typeof groupFilters;
