import type { Ranks } from "./handle.ts";
import { trainedTokens } from "./packing.ts";
import type { TrainRow } from "./protocol.ts";
import { learningRate, type ScheduleSpec } from "./schedule.ts";
import { type BatchResult, dropRows, planUpdate, putRows, runUpdates } from "./update.ts";

export interface SftSettings {
  maxTokensPerDevice: number;
  schedule: ScheduleSpec;
}

/** What a supervised row needs: `mask` is 1 on the tokens to learn. */
export type SftRow = Pick<TrainRow, "id" | "tokens" | "mask">;

/** One supervised update on ranks whose loss is "sft". Metrics: loss (mean over tokens), lr, grad_norm, rows. */
export async function sftBatch(
  ranks: Ranks,
  rows: readonly SftRow[],
  settings: SftSettings,
  updatesDone: number,
): Promise<BatchResult> {
  const trainRows = rows.filter((row) => trainedTokens(row.mask) > 0).map(withoutBehaviour);
  if (trainRows.length === 0) {
    const skipped = { reason: "no_trainable_tokens", detail: `${rows.length} rows without a token to learn` } as const;
    return { metrics: { rows: 0, tokens_trained: 0 }, tokens: 0, updates: 0, skipped };
  }
  const plans = [planUpdate(trainRows, ranks.count, settings.maxTokensPerDevice)];
  await putRows(ranks, plans);
  const result = await runUpdates(ranks, plans, () => learningRate(settings.schedule, updatesDone));
  await dropRows(ranks, plans);
  const metrics: Record<string, number> = { rows: trainRows.length, tokens_trained: result.tokens };
  if (result.updates > 0) {
    const { policy_loss: loss, entropy, lr, grad_norm } = result.metrics;
    Object.assign(metrics, { loss, entropy, lr, grad_norm });
  }
  return { ...result, metrics };
}

function withoutBehaviour({ id, tokens, mask }: SftRow): TrainRow {
  const ones = new Float32Array(tokens.length).fill(1);
  return { id, tokens, mask, logprobs: new Float32Array(tokens.length).fill(Number.NaN), temperatures: ones };
}
