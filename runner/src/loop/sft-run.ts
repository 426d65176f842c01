/** Training on demonstrations: ranks without engines or agents. */
import { readDataset } from "../data/dataset.ts";
import { encodeDemonstration } from "../data/demonstration.ts";
import { epochOrder, type Mixture } from "../data/order.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { RunnerError } from "../errors.ts";
import type { Recipe } from "../recipe/index.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { learningRates } from "../trainer/schedule.ts";
import { type SftRow, sftBatch } from "../trainer/sft-batch.ts";
import { readPolicyFolder, sftLoss } from "../trainer/specs.ts";
import { exportRun } from "./export.ts";
import { startRanks } from "./parts.ts";
import { phase } from "./phase.ts";
import type { RunOptions } from "./run-options.ts";

export async function sftRun(options: RunOptions): Promise<"completed" | "interrupted"> {
  const { recipe, log, interrupted } = options;
  const folder = readPolicyFolder(recipe);
  const counted = ({ rows }: Demonstrations) => `${rows.length} demonstrations`;
  const demonstrations = await phase(log, "read", () => readDemonstrations(recipe), counted);
  const count = recipe.actor.devices_per_node;
  const ranks = await phase(log, "start", () => startRanks(recipe, folder, count, sftLoss(recipe)));
  try {
    await phase(log, "train", () => trainRows(options, ranks, demonstrations));
    if (interrupted.aborted) return "interrupted";
    await exportRun(options, ranks, folder.path);
    return "completed";
  } finally {
    await ranks.stop();
  }
}

interface Demonstrations {
  rows: SftRow[];
  mixture: Mixture;
}

async function readDemonstrations({ data, actor }: Recipe): Promise<Demonstrations> {
  const columns = { inputKey: data.input_key, outputKey: data.output_key };
  const options = { ...columns, maxSamples: data.max_samples, weights: data.prompt_probs };
  const { rows, mixture } = await readDataset(data.prompt_dataset!, options);
  const tokenizer = await Tokenizer.load(actor.model_name_or_path, { chatTemplate: data.chat_template });
  const encoded = await Promise.all(
    rows.map(async ({ id, messages }) => ({ id, ...(await encodeDemonstration(tokenizer, messages)) })),
  );
  const long = encoded.find(({ tokens }) => tokens.length > data.max_len);
  if (long) {
    throw new RunnerError(`row ${long.id} has ${long.tokens.length} tokens, data.max_len is ${data.max_len}`, {
      fix: "raise data.max_len, or leave the row out",
    });
  }
  return { rows: encoded, mixture };
}

async function trainRows(options: RunOptions, ranks: RankGroup, data: Demonstrations): Promise<void> {
  const { recipe, arithmetic, log, interrupted } = options;
  const { batch_size: batchSize, max_tokens_per_device: maxTokensPerDevice } = recipe.train;
  const settings = { maxTokensPerDevice, schedule: learningRates(recipe, arithmetic.updates!) };
  const batches = batchesOf(data, batchSize, recipe.run.seed, arithmetic.steps!);
  let step = 0;
  let updates = 0;
  for (const batch of batches) {
    if (interrupted.aborted) return;
    const result = await sftBatch(ranks, batch, settings, updates);
    updates += result.updates;
    step += 1;
    if (result.skipped) throw new RunnerError(`step ${step} changed nothing: ${result.skipped.detail}`);
    log.emit({ type: "step", step, policyVersion: updates, metrics: result.metrics });
  }
}

/** In a seeded order, epoch after epoch; the last batch may be short. */
function* batchesOf(data: Demonstrations, batchSize: number, seed: number, steps: number): Generator<SftRow[]> {
  const { rows, mixture } = data;
  let epoch = 0;
  let order: number[] = [];
  for (let step = 0; step < steps; step++) {
    if (order.length === 0) order = [...epochOrder(rows.length, seed, epoch++, mixture)];
    yield order.splice(0, batchSize).map((index) => rows[index]!);
  }
}
