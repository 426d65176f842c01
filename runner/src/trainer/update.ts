import { sum } from "../algorithms/advantages/estimator.ts";
import { addMetrics, type UpdateMetrics } from "../algorithms/metrics.ts";
import { shorten } from "../lists.ts";
import { balance } from "./balance.ts";
import type { Ranks } from "./handle.ts";
import { dealMicrobatches, type StoredRow, trainedTokens } from "./packing.ts";
import type { UpdateResult } from "./protocol.ts";

/** One optimizer step. `microbatches[dataRank]` are as many on every rank; the last may be empty. */
export interface UpdatePlan {
  microbatches: StoredRow[][][];
  /** Trained tokens over all ranks: the loss's denominator. */
  numTokens: number;
}

/** Why a batch changed no weights, moments, schedule or version. */
export interface Skipped {
  reason: "no_trainable_tokens" | "non_finite_gradient";
  detail: string;
}

/** With `updates` above 0 the weights have changed, also where a later update was skipped. */
export interface BatchResult {
  metrics: Record<string, number>;
  tokens: number;
  updates: number;
  skipped?: Skipped | null;
}

export interface UpdateSettings {
  maxTokensPerDevice: number;
  /** Of the KL term, where the loss has one. */
  klCoef?: number;
  /** The learning rate after so many updates; null: the policy stands still. */
  schedule: (updates: number) => number | null;
  /** Where there is a critic. */
  criticSchedule?: (updates: number) => number;
}

/**
 * Each of `updates` holds one optimizer step's rows; `updatesDone` were before. `prepare` runs once the rows lie on the
 * ranks.
 */
export async function trainUpdates(
  ranks: Ranks,
  updates: readonly (readonly StoredRow[])[],
  settings: UpdateSettings,
  updatesDone: number,
  prepare: (plans: readonly UpdatePlan[]) => Promise<void> = async () => {},
): Promise<BatchResult> {
  const plans = updates.map((rows) => planUpdate(rows, ranks, settings.maxTokensPerDevice));
  await putRows(ranks, plans);
  await prepare(plans);
  const result = await runUpdates(ranks, plans, settings, updatesDone);
  await dropRows(ranks, plans);
  return { ...result, metrics: { ...result.metrics, rows: updates.flat().length, tokens_trained: result.tokens } };
}

export function nothingToTrain(detail: string): BatchResult {
  const skipped = { reason: "no_trainable_tokens", detail } as const;
  return { metrics: { rows: 0, tokens_trained: 0 }, tokens: 0, updates: 0, skipped };
}

/**
 * Cuts a batch into at most `count` updates by rollouts, evenly in trained tokens. Nothing is lost; updates without a
 * token are left out.
 */
export function cutUpdates<T extends { tokens: number }>(rollouts: readonly T[], count: number): T[][] {
  const trainable = rollouts.filter((rollout) => rollout.tokens > 0);
  return balance(trainable, count, (rollout) => rollout.tokens).filter((update) => update.length > 0);
}

/** Deals rows to data ranks; of what a device may hold, a context group's devices hold a part each. */
export function planUpdate(
  rows: readonly StoredRow[],
  { dataCount, contextSize, rowCost }: Pick<Ranks, "dataCount" | "contextSize" | "rowCost">,
  tokensPerDevice: number,
): UpdatePlan {
  const microbatches = dealMicrobatches(rows, dataCount, tokensPerDevice * contextSize, rowCost);
  return { microbatches, numTokens: rows.reduce((sum, row) => sum + trainedTokens(row.mask), 0) };
}

export function idsOf(microbatches: readonly StoredRow[][]): string[][] {
  return microbatches.map((rows) => rows.map((row) => row.id));
}

export function rowsOf(plans: readonly UpdatePlan[], rank: number): StoredRow[] {
  return plans.flatMap((plan) => plan.microbatches[rank]!.flat());
}

export async function putRows(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  await ranks.all("putRows", (rank) => ({ rows: rowsOf(plans, rank) }));
}

/** Keeps what the ranks found of them. */
export async function dropRows(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  const results = await ranks.all("dropRows", (rank) => ({ ids: rowsOf(plans, rank).map(({ id }) => id) }));
  results.forEach(({ found }, rank) => {
    for (const [index, row] of rowsOf(plans, rank).entries()) Object.assign(row, found[index]);
  });
}

/** Means are over the trained tokens of all updates made. A skipped update does not advance the schedule. */
export async function runUpdates(
  ranks: Ranks,
  plans: readonly UpdatePlan[],
  { schedule, criticSchedule, klCoef = 0 }: UpdateSettings,
  updatesDone: number,
): Promise<BatchResult> {
  const total: UpdateMetrics = { sums: {}, maxima: {} };
  const metrics: Record<string, number> = {};
  let tokens = 0;
  let updates = 0;
  let skipped: Skipped | undefined;
  for (const { microbatches, numTokens } of plans) {
    const learningRate = schedule(updatesDone + updates);
    const criticLearningRate = criticSchedule?.(updatesDone + updates) ?? null;
    const rates = { learningRate, criticLearningRate, measuresLive: updates === 0 };
    const results = await ranks.all("update", (rank) => {
      return { microbatches: idsOf(microbatches[rank]!), numTokens, ...rates, klCoef };
    });
    skipped = nonFinite(results);
    if (skipped) break;
    tokens += numTokens;
    updates++;
    for (const result of results) addMetrics(total, result);
    const { gradientNorm, criticGradientNorm } = results[0]!;
    if (learningRate !== null) {
      metrics.grad_norm = Math.max(metrics.grad_norm ?? 0, gradientNorm!);
      metrics.lr = learningRate;
    }
    if (criticLearningRate !== null) {
      metrics.critic_grad_norm = Math.max(metrics.critic_grad_norm ?? 0, criticGradientNorm!);
      metrics.critic_lr = criticLearningRate;
    }
  }
  for (const [name, sum] of Object.entries(total.sums)) metrics[name] = sum / tokens;
  for (const [name, [sum, count]] of Object.entries(total.means ?? {})) if (count > 0) metrics[name] = sum / count;
  return { metrics: { ...total.maxima, ...metrics }, tokens, updates, skipped };
}

/** The norm is all-reduced, so every rank says the same. */
function nonFinite(results: readonly UpdateResult[]): Skipped | undefined {
  const names = results[0]!.nonFinite;
  if (names === null) return undefined;
  const loss = sum(results.map(({ sums }) => sums.policy_loss ?? 0));
  const cause = Number.isFinite(loss) ? "" : `the loss is ${loss}; `;
  const detail = `${cause}${names.length > 0 ? `not finite: ${shorten(names, 5)}` : "its norm overflows"}`;
  return { reason: "non_finite_gradient", detail };
}
