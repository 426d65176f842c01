/** One run from its recipe to its export: starts what the loop needs, and ends it whatever happens. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Group, Row } from "../agents/types.ts";
import { type Dataset, readDataset } from "../data/dataset.ts";
import type { ModelFolder } from "../data/model-folder.ts";
import { PromptQueue } from "../data/order.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { pack } from "../encoding.ts";
import { syncWeights } from "../engines/weight-sync.ts";
import { usageError } from "../errors.ts";
import { replaceFileAsync } from "../files.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { Arithmetic, Recipe } from "../recipe/index.ts";
import type { EventLog } from "../telemetry/log.ts";
import { readPolicyFolder, schedule } from "../trainer/specs.ts";
import { trainBatch } from "../trainer/train-batch.ts";
import { type LoopState, pruneCheckpoints, removePartialCheckpoints, saveCheckpoint } from "./checkpoint.ts";
import { evaluate } from "./evaluate.ts";
import { copyExport, exportModel } from "./export.ts";
import { type LoopProgress, type LoopServices, TrainingLoop, type TrainOutcome } from "./loop.ts";
import { evalProfiles, type Parts, readEvalRows, startParts, stopParts, syncDeadlines } from "./parts.ts";
import { phase } from "./phase.ts";
import type { RunDirectory } from "./run-directory.ts";
import { sampleOf, showsSample } from "./sample.ts";

export interface TrainRunOptions {
  recipe: Recipe;
  arithmetic: Arithmetic;
  directory: RunDirectory;
  log: EventLog;
  interrupted: AbortSignal;
  /** Where to go on; null at the beginning. */
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
    const state = await phase(log, "train", () => run.train(interrupted));
    if (state === "completed") {
      await phase(
        log,
        "export",
        () => run.export(),
        () => displayPath(directory.export),
      );
    }
    return state;
  } finally {
    await stopParts(parts);
    removePartialCheckpoints(directory.checkpoints);
  }
}

/** A checkpoint counts the prompts of exactly one dataset. */
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

/** The loop's services over the started parts. */
class TrainRun {
  private readonly options: TrainRunOptions;
  private readonly folder: ModelFolder;
  private readonly data: Prompts;
  private readonly parts: Parts;
  private readonly queue: PromptQueue;
  /** Optimizer updates made. */
  private updates = 0;
  private version = 0;
  private evals = 0;
  /** To show samples with. */
  private tokenizer: Tokenizer | null = null;

  constructor(options: TrainRunOptions, folder: ModelFolder, data: Prompts, parts: Parts) {
    this.options = options;
    this.folder = folder;
    this.data = data;
    this.parts = parts;
    const { run, data: dataKeys, rollout } = options.recipe;
    this.queue = new PromptQueue({
      promptIds: data.rows.map((row) => row.id),
      seed: run.seed,
      // With a number of steps, the data repeats as often as they need.
      epochs: run.steps === null ? dataKeys.epochs : Number.POSITIVE_INFINITY,
      maxAttempts: rollout.max_attempts,
      mixture: data.mixture,
    });
  }

  /** Weights, optimizer and frontier of the checkpoint; then every engine at the trainer's version. */
  async restore(): Promise<void> {
    const { checkpoint, log } = this.options;
    if (checkpoint) {
      const { state, directory } = checkpoint;
      if (state.worldSize !== this.parts.ranks.count) {
        throw usageError(
          `the checkpoint is of ${state.worldSize} ranks, the recipe asks for ${this.parts.ranks.count}`,
          {
            fix: `--actor.devices_per_node ${state.worldSize}`,
          },
        );
      }
      const [shard] = await this.parts.ranks.all("loadCheckpoint", { directory });
      this.queue.restore(state.prompts);
      this.updates = state.updates;
      this.version = state.policyVersion;
      const { step, untrained } = state;
      const detail = `optimizer at update ${shard!.stepCount}, ${untrained.length} finished groups kept`;
      log.emit({ type: "phase", name: `restored step ${step}`, state: "end", seconds: 0, detail });
    }
    await this.sync(this.version);
  }

  train(interrupted: AbortSignal): Promise<"completed" | "interrupted"> {
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
      // A rollout ends itself at its own timeout; this one is behind it.
      groupTimeout: rollout.timeout + rollout.turn_timeout,
      evalSteps: evaluation.steps,
      evalAtStart: evaluation.at_start,
      saveSteps: ckpt.save_steps,
      stopAfterSkipped: train.stop_after_skipped,
    };
    const progress = checkpoint && { ...checkpoint.state };
    return new TrainingLoop(options, this.services(), this.queue, log, progress).run(interrupted);
  }

  async export(): Promise<void> {
    const { directory, recipe } = this.options;
    await exportModel(this.parts.ranks, this.folder.path, directory.export);
    if (recipe.ckpt.output_dir) await copyExport(directory.export, recipe.ckpt.output_dir);
  }

  private services(): LoopServices {
    const { recipe } = this.options;
    const { agents, fleet, ranks } = this.parts;
    const { temperature, top_p: topP, max_new_tokens: maxNewTokens } = recipe.rollout;
    return {
      rollout: (prompt, groupId, rolloutId, signal) =>
        agents.runRollout(
          {
            row: this.data.rows[prompt.index]!,
            groupId,
            rolloutId,
            attempt: prompt.attempt,
            sampling: { temperature, topP, topK: 0, maxNewTokens },
          },
          signal,
        ),
      train: (groups) => this.trainStep(groups),
      sync: (version) => this.sync(version),
      evaluate: this.data.evalRows && ((signal) => this.evaluate(signal)),
      storeRollouts: (step, groups) => this.storeRollouts(step, groups),
      checkpoint: (progress) => this.save(progress),
      died: Promise.race([ranks.died, fleet.died]),
    };
  }

  private async trainStep(groups: Group[]): Promise<TrainOutcome> {
    const { algo, reward, train } = this.options.recipe;
    const settings = {
      estimator: algo.advantage.estimator,
      rewardClip: reward.clip_range,
      dynamicFiltering: algo.dynamic_filtering,
      updatesPerBatch: train.updates_per_batch,
      maxTokensPerDevice: train.max_tokens_per_device,
      schedule: schedule(this.options.recipe, this.options.arithmetic.updates!),
    };
    const result = await trainBatch(this.parts.ranks, { groups }, settings, this.updates);
    this.updates += result.updates;
    const { metrics, updates, dropped, skipped = null } = result;
    return { metrics, updates, dropped, skipped };
  }

  private async sync(version: number): Promise<{ seconds: number; checksum: string; engines: number }> {
    const { ranks, fleet } = this.parts;
    const { drainSeconds, deadlineSeconds } = syncDeadlines(this.options.recipe);
    const result = await syncWeights({
      fleet,
      ranks,
      units: this.folder.decoder.units,
      version,
      inFlight: this.options.recipe.train.partial_rollout,
      drainSeconds,
      deadlineSeconds,
      log: (message) => this.options.log.emit({ type: "warning", message }),
    });
    this.version = version;
    return result;
  }

  private evaluate(signal: AbortSignal): Promise<Record<string, number>> {
    const { evalRows } = this.data;
    return evaluate(evalRows!, evalProfiles(this.options.recipe), this.parts.agents, `eval-${this.evals++}`, signal);
  }

  private async storeRollouts(step: number, groups: Group[]): Promise<void> {
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

  private async save(progress: LoopProgress): Promise<void> {
    const { directory, log, recipe } = this.options;
    const startedAt = performance.now();
    const state: LoopState = {
      format: 1,
      ...progress,
      updates: this.updates,
      prompts: this.queue.serialize(),
      datasetFingerprint: this.data.fingerprint,
      worldSize: this.parts.ranks.count,
    };
    const saved = await saveCheckpoint(directory.checkpoints, state, (into) =>
      this.parts.ranks.all("saveCheckpoint", { directory: into }),
    );
    pruneCheckpoints(directory.checkpoints, progress.step, recipe.ckpt.max_num, (message) =>
      log.emit({ type: "warning", message }),
    );
    const seconds = (performance.now() - startedAt) / 1000;
    log.emit({ type: "checkpoint", step: progress.step, directory: saved, seconds });
  }
}
