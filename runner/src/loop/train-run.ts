/** One run from recipe to export: starts what the loop needs, and ends it whatever happens. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Group, Row } from "../agents/types.ts";
import { type Dataset, readDataset } from "../data/dataset.ts";
import type { ModelFolder } from "../data/model-folder.ts";
import { type Prompt, PromptQueue } from "../data/order.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { pack } from "../encoding.ts";
import { type SyncResult, syncWeights } from "../engines/weight-sync.ts";
import { usageError } from "../errors.ts";
import { replaceFileAsync } from "../files.ts";
import type { Recipe } from "../recipe/index.ts";
import { readPolicyFolder, schedule } from "../trainer/specs.ts";
import { trainBatch } from "../trainer/train-batch.ts";
import { type LoopState, pruneCheckpoints, removePartialCheckpoints, saveCheckpoint } from "./checkpoint.ts";
import { evaluate } from "./evaluate.ts";
import { exportRun } from "./export.ts";
import { type LoopProgress, type LoopServices, TrainingLoop, type TrainOutcome } from "./loop.ts";
import { evalProfiles, type Parts, readEvalRows, startParts, stopParts, syncDeadlines } from "./parts.ts";
import { phase } from "./phase.ts";
import type { RunOptions } from "./run-options.ts";
import { sampleOf, showsSample } from "./sample.ts";

export interface TrainRunOptions extends RunOptions {
  checkpoint: { directory: string; state: LoopState } | null;
}

export async function trainRun(options: TrainRunOptions): Promise<"completed" | "interrupted"> {
  const { recipe, directory, log, interrupted } = options;
  const folder = readPolicyFolder(recipe);
  const prompts = await readPrompts(recipe);
  const warn = (message: string) => log.emit({ type: "warning", message });
  const parts = await phase(log, "start", () => startParts(recipe, folder, directory.runId, warn));
  try {
    if (interrupted.aborted) return "interrupted";
    const run = new TrainRun(options, folder, prompts, parts);
    await phase(log, "first sync", () => run.restore());
    const state = await phase(log, "train", () => run.loop(interrupted));
    if (state === "completed") await exportRun(options, parts.ranks, folder.path);
    return state;
  } finally {
    await stopParts(parts);
    removePartialCheckpoints(directory.checkpoints);
  }
}

/** A checkpoint counts the prompts of one dataset. */
export async function checkSameData(recipe: Recipe, { datasetFingerprint }: LoopState): Promise<void> {
  if ((await readPrompts(recipe)).fingerprint === datasetFingerprint) return;
  throw usageError(`${[recipe.data.prompt_dataset].flat().join(", ")} changed since the checkpoint was written`, {
    fix: "restore the files, data.max_samples and data.prompt_probs, or start a new run from the exported model",
  });
}

interface Prompts extends Dataset {
  evalRows: Row[] | null;
}

async function readPrompts(recipe: Recipe): Promise<Prompts> {
  const { input_key: inputKey, label_key: labelKey, max_samples: maxSamples, prompt_dataset: paths } = recipe.data;
  const options = { inputKey, labelKey, maxSamples, weights: recipe.data.prompt_probs };
  return { ...(await readDataset(paths!, options)), evalRows: await readEvalRows(recipe) };
}

class TrainRun implements LoopServices {
  readonly evaluate: LoopServices["evaluate"];
  private readonly options: TrainRunOptions;
  private readonly folder: ModelFolder;
  private readonly data: Prompts;
  private readonly parts: Parts;
  private readonly queue: PromptQueue;
  private updates = 0;
  private evals = 0;
  private tokenizer: Tokenizer | null = null;
  private readonly warn = (message: string) => this.options.log.emit({ type: "warning", message });

  constructor(options: TrainRunOptions, folder: ModelFolder, data: Prompts, parts: Parts) {
    this.options = options;
    this.folder = folder;
    this.data = data;
    this.parts = parts;
    const { recipe } = options;
    this.queue = new PromptQueue({
      promptIds: data.rows.map((row) => row.id),
      seed: recipe.run.seed,
      // The data repeats as steps need.
      epochs: recipe.run.steps === null ? recipe.data.epochs : Infinity,
      maxAttempts: recipe.rollout.max_attempts,
      mixture: data.mixture,
    });
    const { evalRows } = data;
    const evalId = () => `eval-${this.evals++}`;
    this.evaluate = evalRows && ((signal) => evaluate(evalRows, evalProfiles(recipe), parts.agents, evalId(), signal));
  }

  get died(): Promise<never> {
    return Promise.race([this.parts.ranks.died, this.parts.fleet.died]);
  }

  /** Weights, optimizer and frontier; then every engine at the trainer's version. */
  async restore(): Promise<void> {
    const { checkpoint, log } = this.options;
    if (checkpoint) {
      const { state, directory } = checkpoint;
      const { step, untrained, worldSize } = state;
      const { count } = this.parts.ranks;
      if (worldSize !== count) {
        const fix = `--actor.devices_per_node ${worldSize}`;
        throw usageError(`the checkpoint is of ${worldSize} ranks, the recipe asks for ${count}`, { fix });
      }
      const [shard] = await this.parts.ranks.all("loadCheckpoint", { directory });
      this.queue.restore(state.prompts);
      this.updates = state.updates;
      const detail = `optimizer at update ${shard!.stepCount}, ${untrained.length} finished groups kept`;
      log.emit({ type: "phase", name: `restored step ${step}`, state: "end", seconds: 0, detail });
    }
    await this.sync(checkpoint?.state.policyVersion ?? 0);
  }

  loop(interrupted: AbortSignal): Promise<"completed" | "interrupted"> {
    const { recipe, log, checkpoint } = this.options;
    const { run, rollout, train, eval: evaluation, ckpt } = recipe;
    const samplesPerPrompt = rollout.n_samples_per_prompt;
    const options = {
      steps: run.steps,
      batchSize: rollout.batch_size,
      samplesPerPrompt,
      minGroup: rollout.min_group ?? samplesPerPrompt,
      maxStaleness: train.max_staleness,
      maxInFlight: rollout.max_in_flight,
      // A rollout has its own timeout; this one is behind it.
      groupTimeout: rollout.timeout + rollout.turn_timeout,
      evalSteps: evaluation.steps,
      evalAtStart: evaluation.at_start,
      saveSteps: ckpt.save_steps,
      stopAfterSkipped: train.stop_after_skipped,
    };
    return new TrainingLoop(options, this, this.queue, log, checkpoint?.state ?? null).run(interrupted);
  }

  rollout({ index, attempt }: Prompt, groupId: string, rolloutId: string, signal: AbortSignal) {
    const { temperature, top_p: topP, max_new_tokens: maxNewTokens } = this.options.recipe.rollout;
    const sampling = { temperature, topP, topK: 0, maxNewTokens };
    const row = this.data.rows[index]!;
    return this.parts.agents.runRollout({ row, groupId, rolloutId, attempt, sampling }, signal);
  }

  async train(groups: Group[]): Promise<TrainOutcome> {
    const { algo, reward, train } = this.options.recipe;
    const settings = {
      estimator: algo.advantage.estimator,
      rewardClip: reward.clip_range,
      dynamicFiltering: algo.dynamic_filtering,
      updatesPerBatch: train.updates_per_batch,
      maxTokensPerDevice: train.max_tokens_per_device,
      schedule: schedule(this.options.recipe, this.options.arithmetic.updates!),
    };
    const outcome = await trainBatch(this.parts.ranks, { groups }, settings, this.updates);
    this.updates += outcome.updates;
    return outcome;
  }

  sync(version: number): Promise<SyncResult> {
    const { recipe } = this.options;
    const { ranks, fleet } = this.parts;
    const { drainSeconds, deadlineSeconds } = syncDeadlines(recipe);
    return syncWeights({
      fleet,
      ranks,
      units: this.folder.decoder.units,
      version,
      inFlight: recipe.train.partial_rollout,
      drainSeconds,
      deadlineSeconds,
      log: this.warn,
    });
  }

  async storeRollouts(step: number, groups: Group[]): Promise<void> {
    const { rollouts } = this.options.directory;
    await mkdir(rollouts, { recursive: true });
    const file = join(rollouts, `step-${String(step).padStart(6, "0")}.msgpack`);
    await replaceFileAsync(file, pack({ format: 1, step, groups }));
    if (showsSample(step)) await this.showSample(step, groups);
  }

  private async showSample(step: number, groups: Group[]): Promise<void> {
    const { path, eosTokenIds } = this.folder;
    const { chat_template: chatTemplate } = this.options.recipe.data;
    this.tokenizer ??= await Tokenizer.load(path, { chatTemplate, eosTokenIds });
    const sample = await sampleOf(step, groups, this.tokenizer);
    if (sample) this.options.log.emit(sample);
  }

  async checkpoint(progress: LoopProgress): Promise<void> {
    const { log, recipe } = this.options;
    const { checkpoints } = this.options.directory;
    const { ranks } = this.parts;
    const startedAt = performance.now();
    const { step } = progress;
    const prompts = this.queue.serialize();
    const rest = { updates: this.updates, datasetFingerprint: this.data.fingerprint, worldSize: ranks.count };
    const saved = await saveCheckpoint(checkpoints, { format: 1, ...progress, prompts, ...rest }, (directory) =>
      ranks.all("saveCheckpoint", { directory }),
    );
    pruneCheckpoints(checkpoints, step, recipe.ckpt.max_num, this.warn);
    log.emit({ type: "checkpoint", step, directory: saved, seconds: (performance.now() - startedAt) / 1000 });
  }
}
