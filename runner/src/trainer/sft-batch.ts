import type { Ranks } from "./handle.ts";
import { trainedTokens } from "./packing.ts";
import type { TrainRow } from "./protocol.ts";
import { type BatchResult, nothingToTrain, trainUpdates, type UpdateSettings } from "./update.ts";

/** `mask` is 1 on the tokens to learn. */
export type SftRow = Pick<TrainRow, "id" | "tokens" | "mask">;

/** One update on ranks whose loss is "sft". Metrics: loss (mean over tokens), lr, grad_norm, rows. */
export async function sftBatch(
  ranks: Ranks,
  rows: readonly SftRow[],
  settings: UpdateSettings,
  updatesDone: number,
): Promise<BatchResult> {
  const trainRows = rows.filter((row) => trainedTokens(row.mask) > 0).map(withoutBehaviour);
  if (trainRows.length === 0) return nothingToTrain(`${rows.length} rows without a token to learn`);
  const result = await trainUpdates(ranks, [trainRows], settings, updatesDone);
  const { rows: count, tokens_trained, policy_loss: loss, entropy, lr, grad_norm } = result.metrics;
  const learned = { loss, entropy, lr, grad_norm } as Record<string, number>;
  return { ...result, metrics: { rows: count!, tokens_trained: tokens_trained!, ...(result.updates > 0 && learned) } };
}

function withoutBehaviour({ id, tokens, mask }: SftRow): TrainRow {
  const ones = new Float32Array(tokens.length).fill(1);
  return { id, tokens, mask, logprobs: new Float32Array(tokens.length).fill(Number.NaN), temperatures: ones };
}
