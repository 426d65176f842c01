import { balance } from "./balance.ts";

/**
 * Cuts a batch into `count` optimizer updates by rollouts, evenly in trained tokens. Nothing is lost; an update that
 * would have nothing to train is left out, so fewer may come back.
 */
export function cutUpdates<T extends { tokens: number }>(rollouts: readonly T[], count: number): T[][] {
  const trainable = rollouts.filter((rollout) => rollout.tokens > 0);
  return balance(trainable, count, (rollout) => rollout.tokens).filter((update) => update.length > 0);
}
