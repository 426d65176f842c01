import type { Demonstration } from "../data/demonstration.ts";
import type { Ranks } from "./handle.ts";
import { trainedTokens } from "./packing.ts";
import type { TrainRow } from "./protocol.ts";
import * as update from "./update.ts";

/** One update on ranks whose loss is "sft". Metrics: loss (mean over tokens), lr, grad_norm, rows. */
export async function sftBatch(
  ranks: Ranks,
  rows: readonly Demonstration[],
  settings: update.UpdateSettings,
  updatesDone: number,
): Promise<update.BatchResult> {
  const trainRows = rows.filter((row) => trainedTokens(row.mask) > 0).map(withoutBehaviour);
  if (trainRows.length === 0) return update.nothingToTrain(`${rows.length} rows without a token to learn`);
  const result = await update.trainUpdates(ranks, [trainRows], settings, updatesDone);
  const { rows: count, tokens_trained, policy_loss: loss, entropy, lr, grad_norm } = result.metrics;
  const learned = { loss, entropy, lr, grad_norm } as Record<string, number>;
  return { ...result, metrics: { rows: count!, tokens_trained: tokens_trained!, ...(result.updates > 0 && learned) } };
}

/** Without gradient: nats a token over all tokens to learn, and its exponential. */
export async function sftLossOf(ranks: Ranks, rows: readonly Demonstration[], maxTokensPerDevice: number) {
  const plan = update.planUpdate(rows.map(withoutBehaviour), ranks, maxTokensPerDevice);
  await update.putRows(ranks, [plan]);
  const microbatches = (rank: number) => update.idsOf(plan.microbatches[rank]!);
  const results = await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as: "old" as const }));
  await update.dropRows(ranks, [plan]);
  const values = results.flatMap(({ logprobs }) => logprobs.map((row) => row.reduce((sum, value) => sum - value, 0)));
  const loss = values.reduce((sum, value) => sum + value, 0) / plan.numTokens;
  return { loss, perplexity: Math.exp(loss), tokens: plan.numTokens };
}

function withoutBehaviour({ id, tokens, mask }: Demonstration): TrainRow {
  const ones = new Float32Array(tokens.length).fill(1);
  return { id, tokens, mask, logprobs: new Float32Array(tokens.length).fill(Number.NaN), temperatures: ones };
}
