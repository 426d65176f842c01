import { balance } from "./balance.ts";

/**
 * Cuts a batch into at most `count` updates by rollouts, evenly in trained tokens. Nothing is lost; updates without a
 * token are left out.
 */
export function cutUpdates<T extends { tokens: number }>(rollouts: readonly T[], count: number): T[][] {
  const trainable = rollouts.filter((rollout) => rollout.tokens > 0);
  return balance(trainable, count, (rollout) => rollout.tokens).filter((update) => update.length > 0);
}
