/** One run from recipe to export: starts what the loop needs, and ends it whatever happens. */
import type { Group, Row } from "../agents/types.ts";
import { adaptedKlCoef } from "../algorithms/kl.ts";
import { type Dataset, readDataset } from "../data/dataset.ts";
import type { ModelFolder } from "../data/model-folder.ts";
import { type Prompt, PromptQueue } from "../data/order.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { deferred } from "../deferred.ts";
import type { Engine } from "../engines/fleet.ts";
import { transportOf } from "../engines/from-recipe.ts";
import type { EnginePool } from "../engines/router.ts";
import type { Transport } from "../engines/transfer/transport.ts";
import { joinEngine, type SyncOptions, type SyncResult, syncWeights } from "../engines/weight-sync.ts";
import { ChildDied } from "../launchers/child.ts";
import { type Cluster, localCluster } from "../launchers/cluster.ts";
import { openCluster } from "../launchers/index.ts";
import type { Recipe } from "../recipe/index.ts";
import { type GroupRecord, RolloutStore } from "../telemetry/shards.ts";
import { RankLost } from "../trainer/handle.ts";
import { readPolicyFolder, trainSettings } from "../trainer/specs.ts";
import { dropReason, type TrainSettings, trainBatch } from "../trainer/train-batch.ts";
import { type Checkpoint, findCheckpoint, hashOf, type LoopState, removePartialCheckpoints } from "./checkpoint.ts";
import { evaluate } from "./evaluate.ts";
import { exportRun } from "./export.ts";
import { type LoopProgress, type LoopServices, TrainingLoop, type TrainOutcome } from "./loop.ts";
import { evalProfiles, type Parts, readEvalRows, startParts, stopParts, syncDeadlines } from "./parts.ts";
import { phase } from "./phase.ts";
import type { RunOptions } from "./run-options.ts";
import { sampleOf, showsSample } from "./sample.ts";
import { saveRun } from "./save.ts";

export interface TrainRunOptions extends RunOptions {
  checkpoint: Checkpoint | null;
}

/** One life of a run: from a checkpoint, or from the start. */
export type TrainFrom = (
  options: TrainRunOptions & { cluster: Cluster },
  life: { hasStarted: boolean },
) => Promise<"completed" | "interrupted">;

/**
 * A rank lost after the start sends the run back to its newest checkpoint, a few times without a newer one. `from`:
 * what goes on from a checkpoint.
 */
export async function trainRun(options: TrainRunOptions, from: TrainFrom): Promise<"completed" | "interrupted"> {
  const { recipe, directory, log } = options;
  const cluster = await openCluster(recipe, directory.runId, log);
  try {
    return await trainOn(cluster, options, from);
  } finally {
    await cluster.close();
  }
}

async function trainOn(cluster: Cluster, options: TrainRunOptions, from: TrainFrom) {
  const { recipe, arithmetic, directory, log, interrupted } = options;
  const warn = (message: string) => log.emit({ type: "warning", message });
  let { checkpoint } = options;
  const life = { hasStarted: checkpoint !== null };
  for (let restarts = 1; ; restarts++) {
    try {
      if (cluster !== localCluster) await phase(log, "nodes", () => cluster.ready(interrupted));
      if (interrupted.aborted) return "interrupted";
      return await from({ ...options, checkpoint, cluster }, life);
    } catch (error) {
      if (!(error instanceof ChildDied) || !life.hasStarted || interrupted.aborted) throw error;
      const { message } = error;
      if (error instanceof RankLost) log.emit({ type: "rank", rank: error.rank, state: "died", message });
      else warn(message);
      const newest = await findCheckpoint(directory.checkpoints, warn);
      if (newest?.state.step !== checkpoint?.state.step) restarts = 1;
      if (restarts > recipe.run.max_restarts) throw error;
      checkpoint = newest;
      log.emit({ type: "resumed", fromStep: checkpoint?.state.step ?? 0, totalSteps: arithmetic.steps });
    }
  }
}

export const trainFrom: TrainFrom = async (options, life) => {
  const { recipe, directory, log, interrupted, cluster } = options;
  const folder = readPolicyFolder(recipe);
  const prompts = await readPrompts(recipe);
  const settings = await trainSettings(recipe, options.arithmetic.updates!);
  const start = () => startParts(recipe, folder, directory.runId, (event) => log.emit(event), cluster);
  const parts = await phase(log, "start", start);
  const run = new TrainRun(options, folder, prompts, parts, settings);
  try {
    life.hasStarted = true;
    if (interrupted.aborted) return "interrupted";
    await phase(log, "first sync", () => Promise.race([run.restore(), run.died]));
    const state = await phase(log, "train", () => run.loop(interrupted));
    await run.saving;
    if (state === "completed") await exportRun(options, parts.ranks, folder.path);
    return state;
  } finally {
    await stopParts(parts);
    await run.saving;
    removePartialCheckpoints(directory.checkpoints);
  }
};

export interface Prompts extends Dataset {
  evalRows: Row[] | null;
}

export async function readPrompts(recipe: Recipe): Promise<Prompts> {
  const { input_key: inputKey, label_key: labelKey, max_samples: maxSamples, prompt_dataset: paths } = recipe.data;
  const options = { inputKey, labelKey, maxSamples, weights: recipe.data.prompt_probs };
  return { ...(await readDataset(paths!, options)), evalRows: await readEvalRows(recipe) };
}

class TrainRun implements LoopServices {
  readonly evaluate: LoopServices["evaluate"];
  private readonly queue: PromptQueue;
  private klCoef: number;
  /** A checkpoint on its way to the disk; never rejects. */
  saving: Promise<void> = Promise.resolve();
  private transferring: Promise<unknown> = Promise.resolve();
  /** Ends the eval that runs. */
  private evalLost = new AbortController();
  private updates = 0;
  /** What the engines have. */
  private synced = { updates: 0, version: 0 };
  private tokenizer: Tokenizer | null = null;
  private readonly warn = (message: string) => this.options.log.emit({ type: "warning", message });
  private readonly store: RolloutStore;
  private readonly transport: Transport;

  constructor(
    private readonly options: TrainRunOptions,
    private readonly folder: ModelFolder,
    private readonly data: Prompts,
    private readonly parts: Parts,
    private readonly settings: TrainSettings,
  ) {
    const { target, init_coef: first } = options.recipe.algo.kl;
    this.klCoef = (target !== null && options.checkpoint?.state.klCoef) || first;
    const { recipe } = options;
    this.store = new RolloutStore(options.directory.path, this.warn, recipe.logger.rollout_steps);
    this.queue = new PromptQueue({
      promptIds: data.rows.map((row) => row.id),
      seed: recipe.run.seed,
      // The data repeats as steps need.
      epochs: recipe.run.steps === null ? recipe.data.epochs : Infinity,
      maxAttempts: recipe.rollout.max_attempts,
      deterministic: recipe.run.deterministic,
      mixture: data.mixture,
      bySolveRate: recipe.data.curriculum === "solve_rate",
    });
    const { ranks, fleet } = parts;
    this.transport = transportOf(recipe, folder, { ranks, client: fleet.client }, options.directory.path);
    fleet.onRestart = (engine) => this.join(engine);
    const { evalRows } = data;
    this.evaluate = evalRows && ((step, signal) => this.evaluateRows(evalRows, step, signal));
  }

  private async evaluateRows(rows: Row[], step: number, signal: AbortSignal): Promise<Record<string, number>> {
    const { recipe } = this.options;
    const either = AbortSignal.any([signal, this.evalLost.signal]);
    const of = { rows, profiles: evalProfiles(recipe), passK: recipe.eval.pass_k };
    const task = { ...of, evalId: `eval-${step}`, policyVersion: this.synced.version };
    const { metrics, groups } = await evaluate(task, this.parts.agents, either);
    if (!either.aborted) await this.store.addEval(step, groups);
    return metrics;
  }

  get died(): Promise<never> {
    return Promise.race([this.parts.ranks.died, this.parts.fleet.died]);
  }

  /** Weights, optimizer and frontier; then every engine at the trainer's version. */
  async restore(): Promise<void> {
    const { checkpoint, log, recipe } = this.options;
    if (checkpoint) {
      const { state, directory } = checkpoint;
      const { step, untrained, worldSize, policyVersion } = state;
      const [shard] = await this.parts.ranks.all("loadCheckpoint", { directory });
      this.queue.restore(state.prompts);
      this.updates = state.updates;
      const update = shard!.stepCount;
      const weights = `version ${policyVersion}, weights and optimizer of ${worldSize} ranks at update ${update}`;
      const change = hashOf(recipe) === state.recipeHash ? "as it was" : "changed since";
      const detail = `${weights}, the data's frontier, ${untrained.length} finished groups; the recipe is ${change}`;
      log.emit({ type: "phase", name: `restored step ${step}`, state: "end", seconds: 0, detail });
    }
    await this.sync(checkpoint?.state.policyVersion ?? 0);
  }

  loop(interrupted: AbortSignal): Promise<"completed" | "interrupted"> {
    const { recipe, log, checkpoint } = this.options;
    const { run, rollout, train, algo, eval: evaluation, ckpt } = recipe;
    const budget = Math.ceil(algo.refill_budget * rollout.batch_size);
    const refill = { budget, reasonOf: (group: Group) => dropReason(group, recipe) };
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
      evalApart: evaluation.engines > 0,
      saveSteps: ckpt.save_steps,
      stopAfterSkipped: train.stop_after_skipped,
      refill: algo.dynamic_filtering === "refill" ? refill : undefined,
      deterministic: run.deterministic,
    };
    const loop = new TrainingLoop(options, this, this.queue, log, checkpoint?.state ?? null);
    return loop.run(interrupted).finally(() => this.store.flush());
  }

  rollout({ index, attempt }: Prompt, groupId: string, rolloutId: string, signal: AbortSignal) {
    const { temperature, top_p: topP, max_new_tokens: maxNewTokens } = this.options.recipe.rollout;
    const sampling = { temperature, topP, topK: 0, maxNewTokens };
    const row = this.data.rows[index]!;
    return this.parts.agents.runRollout({ row, groupId, rolloutId, attempt, sampling }, signal);
  }

  async train(groups: Group[]): Promise<TrainOutcome> {
    const { klCoef, settings, updates } = this;
    const work = () => trainBatch(this.parts.ranks, { groups }, { ...settings, klCoef }, updates);
    const outcome = await this.alone(work);
    this.updates += outcome.updates;
    const { kl } = outcome.metrics;
    if (kl === undefined) return outcome;
    const { target, horizon } = this.options.recipe.algo.kl;
    const rollouts = groups.flatMap((group) => group.rollouts).length;
    if (target !== null) this.klCoef = adaptedKlCoef(klCoef, kl, target, horizon, rollouts);
    return { ...outcome, metrics: { ...outcome.metrics, kl_coef: klCoef } };
  }

  async sync(version: number, pools?: readonly EnginePool[]): Promise<SyncResult> {
    const result = await this.alone(() => syncWeights({ ...this.syncOptions(version), pools }));
    this.synced = { updates: this.updates, version };
    this.parts.fleet.restarts.clear();
    return result;
  }

  /** Gives an engine that was started again the others' weights; trained on since, the sync to come does. */
  private join(engine: Engine): void {
    this.alone(async () => {
      const { updates, version } = this.synced;
      if (updates === this.updates) await joinEngine(this.syncOptions(version), engine);
      if (this.parts.fleet.router.serves(this.options.recipe.eval.engines > 0 ? "eval" : "train")) return;
      // Nobody has the version that an eval may be at any more, and the sync to come waits for its end.
      this.evalLost.abort();
      this.evalLost = new AbortController();
    });
  }

  /** One at a time: no engine gets the weights of a batch half trained. */
  private alone<T>(work: () => Promise<T>): Promise<T> {
    const done = this.transferring.then(work);
    this.transferring = done.catch(() => {});
    return done;
  }

  private syncOptions(version: number): SyncOptions {
    const { recipe } = this.options;
    const { drainSeconds, deadlineSeconds } = syncDeadlines(recipe);
    return {
      fleet: this.parts.fleet,
      transport: this.transport,
      version,
      inFlight: recipe.train.partial_rollout,
      drainSeconds,
      deadlineSeconds,
      log: this.warn,
    };
  }

  async storeRollouts(step: number, records: GroupRecord[]): Promise<void> {
    await this.store.add(step, records);
    if (!showsSample(step)) return;
    const { path, eosTokenIds } = this.folder;
    const { chat_template: chatTemplate } = this.options.recipe.data;
    this.tokenizer ??= await Tokenizer.load(path, { chatTemplate, eosTokenIds });
    const groups = records.map(({ group }) => group);
    const sample = await sampleOf(step, groups, this.tokenizer);
    if (sample) this.options.log.emit(sample);
  }

  /** Waits for the snapshot alone, and for the one before it to be on the disk. */
  async checkpoint(progress: LoopProgress): Promise<void> {
    // At once: what is dropped from here on is the next checkpoint's.
    const state = this.stateAt(progress);
    await Promise.race([this.saving, this.died]);
    const snapshot = deferred();
    const [flush, onSnapshot] = [() => this.store.flush(), snapshot.resolve];
    this.saving = saveRun(this.options, this.parts.ranks, state, { flush, onSnapshot });
    await snapshot.promise;
  }

  private stateAt(progress: LoopProgress): LoopState {
    const { updates, klCoef } = this;
    const { fingerprint: datasetFingerprint } = this.data;
    const made = { datasetFingerprint, recipeHash: hashOf(this.options.recipe), worldSize: this.parts.ranks.count };
    return { ...progress, prompts: this.queue.serialize(), updates, klCoef, ...made };
  }
}
