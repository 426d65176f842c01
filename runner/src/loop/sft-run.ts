/** Training on demonstrations: ranks without engines or agents. */
import { readDataset } from "../data/dataset.ts";
import { encodeDemonstrations } from "../data/demonstration.ts";
import { PromptQueue } from "../data/order.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { RunnerError } from "../errors.ts";
import type { Recipe } from "../recipe/index.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { learningRates } from "../trainer/schedule.ts";
import { sftBatch, sftLossOf } from "../trainer/sft-batch.ts";
import { readPolicyFolder, sftLoss } from "../trainer/specs.ts";
import { hashOf, removePartialCheckpoints } from "./checkpoint.ts";
import { exportRun } from "./export.ts";
import { startPlacedRanks } from "./parts.ts";
import { phase } from "./phase.ts";
import { saveRun } from "./save.ts";
import type { TrainFrom, TrainRunOptions } from "./train-run.ts";

/** For `trainRun`. */
export const sftFrom: TrainFrom = async (options, life) => {
  const { recipe, log, interrupted, directory } = options;
  const folder = readPolicyFolder(recipe);
  const data = await phase(log, "read", () => readDemonstrations(recipe), inWords);
  const ranks = await phase(log, "start", () => startPlacedRanks(recipe, folder, options.cluster, sftLoss(recipe)));
  try {
    life.hasStarted = true;
    await phase(log, "train", () => trainRows(options, ranks, data));
    if (interrupted.aborted) return "interrupted";
    await exportRun(options, ranks, folder.path);
    return "completed";
  } finally {
    await ranks.stop();
    removePartialCheckpoints(directory.checkpoints);
  }
};

type DemonstrationSet = Awaited<ReturnType<typeof readDemonstrations>>;

function inWords({ rows, heldOut, truncated, dropped }: DemonstrationSet): string {
  const counts = `${rows.length} demonstrations, ${heldOut?.rows.length ?? 0} held out`;
  return `${counts}; longer than data.max_len: ${truncated} cut, ${dropped} left out`;
}

async function readDemonstrations(recipe: Recipe) {
  const { data, actor, eval: evaluation } = recipe;
  const tokenizer = await Tokenizer.load(actor.model_name_or_path, { chatTemplate: data.chat_template });
  const read = async (paths: string | string[], option: string, maxSamples: number | null) => {
    const columns = { inputKey: data.input_key, outputKey: data.output_key };
    const dataset = await readDataset(paths, { ...columns, maxSamples, weights: data.prompt_probs, option });
    const encoded = await encodeDemonstrations(tokenizer, dataset.rows, recipe, { file: `${paths}`, option });
    const left = [...encoded.rows];
    const sizes = dataset.mixture.sizes.map((size) => left.splice(0, size).filter((row) => row !== null).length);
    const rows = encoded.rows.filter((row) => row !== null);
    return { ...dataset, ...encoded, rows, mixture: { ...dataset.mixture, sizes } };
  };
  const heldOut = evaluation.dataset === null ? null : await read(evaluation.dataset, "eval.dataset", null);
  return { ...(await read(data.prompt_dataset!, "data.prompt_dataset", data.max_samples)), heldOut };
}

async function trainRows(options: TrainRunOptions, ranks: RankGroup, data: DemonstrationSet): Promise<void> {
  const { recipe, arithmetic, interrupted, checkpoint, log } = options;
  const { run, train, eval: evaluation, ckpt } = recipe;
  const epochs = run.steps === null ? recipe.data.epochs : Number.POSITIVE_INFINITY;
  const promptIds = data.rows.map(({ id }) => id);
  // A row that was out at a checkpoint never is: it is written between steps.
  const queue = new PromptQueue({ promptIds, seed: run.seed, epochs, maxAttempts: 1, mixture: data.mixture });
  const { step, updates } = checkpoint?.state ?? { step: 0, updates: 0 };
  const at = { step, updates };
  let [evaluated, saved] = [-1, step];
  const evaluate = async () => {
    if (data.heldOut === null || evaluated === at.step) return;
    evaluated = at.step;
    const metrics = await sftLossOf(ranks, data.heldOut.rows, train.max_tokens_per_device);
    log.emit({ type: "eval", step: at.step, policyVersion: at.updates, metrics });
  };
  const save = async () => {
    if (saved === at.step) return;
    saved = at.step;
    const made = { datasetFingerprint: data.fingerprint, recipeHash: hashOf(recipe), worldSize: ranks.count };
    const none = { skippedInARow: 0, untrained: [] };
    await saveRun(options, ranks, { ...at, ...made, ...none, policyVersion: at.updates, prompts: queue.serialize() });
  };
  if (checkpoint) {
    await ranks.all("loadCheckpoint", { directory: checkpoint.directory });
    queue.restore(checkpoint.state.prompts);
  } else if (evaluation.at_start) await evaluate();
  const schedule = learningRates(recipe.actor, arithmetic.updates!);
  const settings = { maxTokensPerDevice: train.max_tokens_per_device, schedule };
  while (at.step < arithmetic.steps! && !interrupted.aborted) {
    const batch = Array.from({ length: train.batch_size }, () => queue.next()).filter((one) => one !== null);
    if (batch.length === 0) break;
    // A small dataset may give a row twice, of two epochs.
    const rows = batch.map(({ index, epoch, promptId }) => ({ ...data.rows[index]!, id: `${promptId}@${epoch}` }));
    const result = await sftBatch(ranks, rows, settings, at.updates);
    for (const prompt of batch) queue.consume(prompt);
    at.updates += result.updates;
    at.step += 1;
    if (result.skipped) throw new RunnerError(`step ${at.step} changed nothing: ${result.skipped.detail}`);
    log.emit({ type: "step", step: at.step, policyVersion: at.updates, metrics: result.metrics });
    if (evaluation.steps > 0 && at.step % evaluation.steps === 0) await evaluate();
    if (ckpt.save_steps > 0 && at.step % ckpt.save_steps === 0) await save();
  }
  if (!interrupted.aborted) await evaluate();
  await save();
}
