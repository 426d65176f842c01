import { balance } from "./balance.ts";
import type { Ranks } from "./handle.ts";
import { packToBudget, trainedTokens } from "./packing.ts";
import type { TrainRow, UpdateResult } from "./protocol.ts";

/** One optimizer step, laid out: `microbatches[rank]` are as many on every rank, the last of a short one empty. */
export interface UpdatePlan {
  microbatches: TrainRow[][][];
  /** Trained tokens of the update over all ranks: the loss's denominator. */
  numTokens: number;
}

/** Why a batch left weights, moments, schedule and version as they were. */
export interface Skipped {
  reason: "no_trainable_tokens" | "non_finite_gradient";
  detail: string;
}

/** What one batch did. With `updates` above 0 the weights have changed, also where a later update was skipped. */
export interface BatchResult {
  metrics: Record<string, number>;
  /** Tokens trained. */
  tokens: number;
  /** Optimizer updates made. */
  updates: number;
  skipped?: Skipped;
}

/** Deals rows to ranks by tokens and packs each rank's share to the device's budget. */
export function planUpdate(rows: readonly TrainRow[], ranks: number, tokensPerDevice: number): UpdatePlan {
  const shares = balance(rows, ranks, (row) => row.tokens.length);
  const microbatches = shares.map((share) => packToBudget(share, tokensPerDevice));
  const count = Math.max(...microbatches.map((list) => list.length));
  for (const list of microbatches) while (list.length < count) list.push([]);
  return { microbatches, numTokens: rows.reduce((sum, row) => sum + trainedTokens(row.mask), 0) };
}

export function idsOf(microbatches: readonly TrainRow[][]): string[][] {
  return microbatches.map((rows) => rows.map((row) => row.id));
}

/** Puts the rows of all updates on their ranks, each row once. */
export async function putRows(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  await ranks.all("putRows", (rank) => ({ rows: plans.flatMap((plan) => plan.microbatches[rank]!.flat()) }));
}

export async function dropRows(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  await ranks.all("dropRows", (rank) => ({ ids: plans.flatMap((plan) => idsOf(plan.microbatches[rank]!).flat()) }));
}

/**
 * Runs the updates in order. Means are over the trained tokens of all updates made; the learning rate of an update
 * follows from how many were made before it, so a skipped one does not advance the schedule.
 */
export async function runUpdates(
  ranks: Ranks,
  plans: readonly UpdatePlan[],
  learningRateAfter: (updates: number) => number,
): Promise<BatchResult> {
  const sums = new Map<string, number>();
  const metrics: Record<string, number> = {};
  let tokens = 0;
  let updates = 0;
  let skipped: Skipped | undefined;
  for (const { microbatches, numTokens } of plans) {
    const learningRate = learningRateAfter(updates);
    const results = await ranks.all("update", (rank) => {
      return { microbatches: idsOf(microbatches[rank]!), numTokens, learningRate };
    });
    skipped = nonFinite(results);
    if (skipped) break;
    tokens += numTokens;
    updates++;
    for (const result of results) merge(result, sums, metrics);
    metrics.grad_norm = results[0]!.gradientNorm;
    metrics.lr = learningRate;
  }
  for (const [name, sum] of sums) metrics[name] = sum / tokens;
  return { metrics, tokens, updates, skipped };
}

/** The norm is all-reduced, so every rank says the same. */
function nonFinite(results: readonly UpdateResult[]): Skipped | undefined {
  const names = results[0]!.nonFinite;
  if (names === null) return undefined;
  const shown = names.slice(0, 5).join(", ") + (names.length > 5 ? ` and ${names.length - 5} more` : "");
  const detail = names.length > 0 ? `not finite: ${shown}` : "its norm overflows";
  return { reason: "non_finite_gradient", detail };
}

function merge(result: UpdateResult, sums: Map<string, number>, maxima: Record<string, number>): void {
  for (const [name, value] of Object.entries(result.sums)) sums.set(name, (sums.get(name) ?? 0) + value);
  for (const [name, value] of Object.entries(result.maxima)) maxima[name] = Math.max(maxima[name] ?? 0, value);
}
