/**
 * The asynchronous loop: four tasks around one buffer.
 *
 * | task | consumes | produces | unblocked by |
 * |---|---|---|---|
 * | generate | prompts in a seeded order | finished groups | a free slot and staleness room |
 * | train | a batch of B groups | policy version v+1 | the buffer holding a batch |
 * | sync | version v+1 | every engine at v+1, verified | the batch's end, evals drained |
 * | eval | the eval set, one version | metrics | its cadence |
 *
 * What crosses processes is behind `LoopServices`; this file decides when.
 */
import { type FailureReason, failures } from "../agents/failures.ts";
import type { FailedRollout, Group, Rollout } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import { solveRates } from "../algorithms/filters/dynamic-filtering.ts";
import type { Prompt, PromptQueue } from "../data/order.ts";
import { DeadlineError, deadlineMs, withDeadline } from "../deadline.ts";
import { failure } from "../deferred.ts";
import type { EnginePool } from "../engines/router.ts";
import type { SyncResult } from "../engines/weight-sync.ts";
import { RunnerError } from "../errors.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { emptyStage, type Funnel, funnelOf } from "../telemetry/funnel.ts";
import type { EventLog } from "../telemetry/log.ts";
import type { GroupRecord } from "../telemetry/shards.ts";
import { StepClock } from "../telemetry/step-time.ts";
import type { TrainResult } from "../trainer/train-batch.ts";
import { ageOf, outcomesOf, withinVersions } from "./outcomes.ts";
import { WorkBuffer, type WorkBufferOptions } from "./work-buffer.ts";

/** Without an update, the step only consumed its batch. */
export type TrainOutcome = Omit<TrainResult, "tokens">;

export interface LoopServices {
  /** Resolves with data for either outcome; rejects on a bug. */
  rollout(prompt: Prompt, groupId: string, rolloutId: string, signal: AbortSignal): Promise<Rollout | FailedRollout>;
  train(groups: Group[], step: number): Promise<TrainOutcome>;
  /** Every engine of these pools, verified. */
  sync(version: number, pools?: readonly EnginePool[]): Promise<SyncResult>;
  /** At the engines' version; null without an eval set. */
  evaluate: ((step: number, signal: AbortSignal) => Promise<Record<string, number>>) | null;
  storeRollouts(step: number, groups: GroupRecord[]): Promise<void>;
  /** Of everything as it is now; resolves when training may go on. */
  checkpoint(progress: LoopProgress): Promise<void>;
  /** When a process that the run needs is gone. */
  died: Promise<never>;
}

export interface LoopOptions extends Omit<WorkBufferOptions, "morePrompts"> {
  /** Null: until the prompts end. */
  steps: number | null;
  samplesPerPrompt: number;
  minGroup: number;
  /** Seconds. */
  groupTimeout: number;
  evalSteps: number;
  evalAtStart: boolean;
  /** Evals have engines of their own. */
  evalApart: boolean;
  saveSteps: number;
  stopAfterSkipped: number;
  /** Says why a group leaves for another prompt's, at most `budget` of them a step. */
  refill?: { reasonOf(group: Group): string | null; budget: number };
  /** Batches are sorted by id. */
  deterministic: boolean;
}

export interface LoopProgress {
  step: number;
  policyVersion: number;
  skippedInARow: number;
  untrained: Group[];
}

type GroupFate = Pick<Extract<RunEvent, { type: "group" }>, "reason" | "requeued" | "reward">;

export class TrainingLoop {
  private readonly buffer: WorkBuffer;
  /** Of live groups, by their id. */
  private readonly promptOf = new Map<string, Prompt>();
  private readonly clock = new StepClock();
  /** Ends rollouts and evals. */
  private readonly abort = new AbortController();
  /** Of a group or an eval, outside the train task. */
  private readonly failure = failure();
  /** The train task, which a failure elsewhere does not end, goes no further. */
  private failed = false;
  /** Batches consumed. */
  private step: number;
  private savedStep: number;
  private evaluatedStep: number | null = null;
  private skippedInARow: number;
  /** Reasons. */
  private droppedInARow: string[] = [];
  /** Dropped before they came to a batch, and not yet in a funnel. */
  private discarded: GroupRecord[] = [];
  /** Mean rewards of the groups replaced since the last step. */
  private refilled: number[] = [];
  /** The newest eval's end, at which the next begins. */
  private evaluation: Promise<void> = Promise.resolve();
  /** Evals that have not ended. */
  private evaluating = 0;
  /** The evals' own engines are at an older version. */
  private evalLags = false;

  constructor(
    private readonly options: LoopOptions,
    private readonly services: LoopServices,
    private readonly prompts: PromptQueue,
    private readonly log: EventLog,
    restored: LoopProgress | null,
  ) {
    this.step = restored?.step ?? 0;
    this.savedStep = this.step;
    this.skippedInARow = restored?.skippedInARow ?? 0;
    const { batchSize, maxStaleness, maxInFlight } = options;
    this.buffer = new WorkBuffer({ batchSize, maxStaleness, maxInFlight, morePrompts: () => this.morePrompts() });
    this.buffer.trainerVersion = restored?.policyVersion ?? 0;
    this.buffer.engineVersion = this.buffer.trainerVersion;
    for (const group of restored?.untrained ?? []) {
      this.promptOf.set(group.groupId, prompts.claim(group));
      this.buffer.restore(group);
    }
  }

  /** To the end, the first failure, or `interrupted` (the step at hand is finished, then saved). */
  async run(interrupted: AbortSignal): Promise<"completed" | "interrupted"> {
    if (interrupted.aborted) return "interrupted";
    interrupted.addEventListener("abort", () => this.abandonRollouts(), { once: true });
    if (this.step === 0 && this.options.evalAtStart) this.startEval();
    try {
      await Promise.race([this.generate(), this.train(interrupted), this.failure.promise, this.services.died]);
      return interrupted.aborted ? "interrupted" : "completed";
    } catch (error) {
      this.failed = true;
      throw error;
    } finally {
      this.abandonRollouts();
    }
  }

  /** Nobody will train or read what runs now. */
  private abandonRollouts(): void {
    this.abort.abort();
    this.buffer.notify();
  }

  private get ending(): boolean {
    return this.abort.signal.aborted;
  }

  // generate

  /** The run ends when training does. */
  private async generate(): Promise<never> {
    for (;;) {
      while (!this.ending && this.buffer.hasRoom() && this.morePrompts()) this.startGroup(this.prompts.next()!);
      await this.buffer.changed();
      if (this.ending) await new Promise(() => {});
    }
  }

  private morePrompts(): boolean {
    const { steps, batchSize } = this.options;
    const wanted = steps === null ? Infinity : (steps - this.step) * batchSize - this.buffer.liveCount;
    return wanted > 0 && this.prompts.hasNext();
  }

  private startGroup(prompt: Prompt): void {
    const groupId = `${prompt.promptId}@${prompt.epoch}.${prompt.attempt}`;
    this.promptOf.set(groupId, prompt);
    this.buffer.admit(groupId, Date.now() + deadlineMs(this.options.groupTimeout));
    this.runGroup(groupId, prompt, this.buffer.engineVersion).catch(this.failure.reject);
  }

  private async runGroup(groupId: string, prompt: Prompt, admittedVersion: number): Promise<void> {
    const { samplesPerPrompt, minGroup, refill } = this.options;
    const members = Array.from({ length: samplesPerPrompt }, (_, member) =>
      this.services.rollout(prompt, groupId, `${groupId}/${member}`, this.abort.signal),
    );
    const ended = await this.clock.generate(Promise.all(members));
    if (this.ending) return;
    const outcomes = ended.map((outcome) => withinVersions(outcome, admittedVersion, this.buffer.trainerVersion));
    const rollouts = outcomes.filter((outcome) => "segments" in outcome);
    const failed = outcomes.filter((outcome): outcome is FailedRollout => !("segments" in outcome));
    const { promptId, epoch, attempt } = prompt;
    const group = { groupId, promptId, epoch, admittedVersion, attempt, rollouts, failed };
    if (!this.buffer.isLive(groupId)) {
      this.discarded.push({ group, dropped: { reason: "stale" } });
      return;
    }
    for (const { promptId, rolloutId, attempt, reason, message } of failed) {
      this.log.emit({ type: "rollout_failed", promptId, groupId, rolloutId, attempt, reason, message });
    }
    if (rollouts.length < minGroup) {
      const { reason, message } = failed[0] ?? { reason: "min_group", message: undefined };
      this.discarded.push({ group, dropped: { reason } });
      this.drop(groupId, reason, message);
      return;
    }
    this.droppedInARow = [];
    const reason = this.refilled.length < (refill?.budget ?? 0) ? refill!.reasonOf(group) : null;
    if (reason === null) this.buffer.finish(group);
    else this.replace(group, reason);
  }

  /** What it leaves free admits another prompt's group. */
  private replace(group: Group, reason: string): void {
    const { groupId, rollouts } = group;
    this.discarded.push({ group, dropped: { reason } });
    this.prompts.consume(this.promptOf.get(groupId)!, solveRate(rollouts));
    this.release(groupId, { reason, requeued: false });
    this.refilled.push(mean(rollouts.map(({ reward }) => reward)));
    if (this.refilled.length < this.options.refill!.budget) return;
    const message = `algo.refill_budget is used up: ${this.refilled.length} groups without signal were replaced`;
    this.log.emit({ type: "warning", message: `${message}; ${solveRates(this.refilled)}` });
  }

  /** Of the checkpoint that will know of what happens now: a resume supersedes later steps. */
  private get stepToSave(): number {
    return this.savedStep === this.step ? this.step + 1 : this.step;
  }

  /** Its place is free; without a `reason` it was trained. */
  private release(groupId: string, fate: GroupFate): void {
    const { promptId, epoch, attempt } = this.promptOf.get(groupId)!;
    const outcome = fate.reason === undefined ? "trained" : "dropped";
    const step = this.stepToSave;
    this.log.emit({ type: "group", groupId, promptId, epoch, attempt, outcome, ...fate, step });
    this.promptOf.delete(groupId);
    this.buffer.remove(groupId);
  }

  /** Frees the group's place; its prompt is given back until its attempts are used up. */
  private drop(groupId: string, reason: FailureReason, detail: string = reason): void {
    const prompt = this.promptOf.get(groupId)!;
    const isFinal = failures[reason] === "final";
    const requeued = !isFinal && this.prompts.giveBack(prompt);
    if (isFinal) this.prompts.consume(prompt);
    this.release(groupId, { reason, requeued });
    this.droppedInARow.push(reason);
    const limit = Math.max(8, 2 * this.options.batchSize);
    if (this.droppedInARow.length < limit) return;
    const count = (name: string) => this.droppedInARow.filter((one) => one === name).length;
    const reasons = [...new Set(this.droppedInARow)].map((name) => `${name}: ${count(name)}`).join(", ");
    throw new RunnerError(`${limit} groups in a row were dropped (${reasons}); the last one: ${detail}`);
  }

  // train

  private async train(interrupted: AbortSignal): Promise<void> {
    while (this.options.steps === null || this.step < this.options.steps) {
      const groups = await this.clock.measure("wait", this.nextBatch());
      if (this.failed) return;
      if (!groups) break;
      await this.trainStep(groups);
      if (this.failed) return;
      if (interrupted.aborted) break;
      if (this.options.evalSteps > 0 && this.step % this.options.evalSteps === 0) await this.startEval();
      if (this.options.saveSteps > 0 && this.step % this.options.saveSteps === 0) await this.save();
    }
    if (!interrupted.aborted) {
      await this.evaluation;
      if (this.step !== this.evaluatedStep) await this.startEval();
      await this.evaluation;
    }
    await this.save();
  }

  /** Null at the end of the prompts, at an interrupt, or after a failure: the run may go on in another loop. */
  private async nextBatch(): Promise<Group[] | null> {
    for (;;) {
      if (this.ending) return null;
      const decision = this.buffer.nextBatch();
      if (decision.kind === "end") return null;
      if (decision.kind === "batch") return decision.groups;
      const { deadlineAt, blockedBy } = decision;
      const { groupTimeout } = this.options;
      const seconds = deadlineAt === null ? groupTimeout : Math.max(0, (deadlineAt - Date.now()) / deadlineMs(1));
      try {
        await withDeadline(this.buffer.changed(), seconds, `groups ${blockedBy.slice(0, 3).join(", ")}`);
      } catch (error) {
        if (!(error instanceof DeadlineError)) throw error;
        if (this.buffer.runningCount === 0) throw new RunnerError("no group was admitted for a whole group timeout");
        for (const groupId of this.buffer.overdue(Date.now())) this.drop(groupId, "stale", "its deadline passed");
      }
    }
  }

  private async trainStep(groups: Group[]): Promise<void> {
    if (this.options.deterministic) groups.sort((one, other) => (one.groupId < other.groupId ? -1 : 1));
    const training = this.services.train(groups, this.step + 1);
    const { metrics, updates, dropped, skipped, values } = await this.clock.measure("train", training);
    if (this.failed) return;
    this.step += 1;
    const trained = groups.filter(({ groupId }) => !dropped.has(groupId));
    const ages = ageOf(trained, this.buffer.trainerVersion);
    this.consume(groups, dropped);
    // At once: what the freed places admit counts from the new version.
    if (updates > 0) this.buffer.trainerVersion += 1;
    const records = groups.map((group) => recordOf(group, dropped, values)).concat(this.discarded.splice(0));
    const refill = this.options.refill && { groups_refilled: this.refilled.splice(0).length };
    const funnel = await this.account(this.step, records);
    if (updates > 0) {
      await this.sync();
      if (this.failed) return;
      const seconds = this.clock.take(records);
      const times = { train_seconds: seconds.train!, sync_seconds: seconds.sync!, live_groups: this.buffer.liveCount };
      const all = { ...metrics, ...ages, ...outcomesOf(records), ...refill, ...times };
      const { step, buffer } = this;
      this.log.emit({ type: "step", step, policyVersion: buffer.trainerVersion, metrics: all, seconds });
    }
    this.countSkipped(skipped, updates, funnel);
  }

  /** Tells and stores what became of all that was sampled for a step. */
  private async account(step: number, records: GroupRecord[]): Promise<Funnel> {
    const funnel = funnelOf(records);
    this.log.emit({ type: "funnel", step, ...funnel });
    await this.clock.measure("store", this.services.storeRollouts(step, records));
    return funnel;
  }

  private countSkipped(skipped: TrainOutcome["skipped"], updates: number, funnel: Funnel): void {
    this.skippedInARow = skipped ? this.skippedInARow + 1 : 0;
    if (!skipped) return;
    const { reason } = skipped;
    const empty = reason === "no_trainable_tokens" ? emptyStage(funnel) : null;
    const detail = [empty, skipped.detail].filter((text) => text).join("; ");
    if (updates === 0) this.log.emit({ type: "step_skipped", step: this.step, reason, detail });
    else {
      const made = `${updates} update${updates === 1 ? "" : "s"}`;
      this.log.emit({ type: "warning", message: `step ${this.step} broke off after ${made} (${reason}): ${detail}` });
    }
    if (this.skippedInARow < this.options.stopAfterSkipped) return;
    throw new RunnerError(`${this.skippedInARow} steps in a row were skipped: ${detail}`);
  }

  private consume(groups: Group[], dropped: TrainOutcome["dropped"]): void {
    for (const { groupId, rollouts } of groups) {
      this.prompts.consume(this.promptOf.get(groupId)!, solveRate(rollouts));
      const reward = mean(rollouts.map((rollout) => rollout.reward));
      const reason = dropped.get(groupId);
      this.release(groupId, { reward, ...(reason !== undefined && { reason, requeued: false }) });
    }
  }

  // sync and eval

  /** After a running eval, to whose version its engines are pinned; those apart wait for the next. */
  private async sync(): Promise<void> {
    this.evalLags = this.options.evalApart && this.evaluating > 0;
    if (!this.evalLags) await this.clock.measure("eval", this.evaluation);
    const version = this.buffer.trainerVersion;
    const heldSince = Date.now();
    const syncing = this.services.sync(version, this.evalLags ? ["train"] : undefined);
    const report = await this.clock.measure("sync", syncing);
    if (this.failed) return;
    this.buffer.postponeDeadlines(Date.now() - heldSince);
    this.buffer.engineVersion = version;
    this.buffer.notify();
    this.log.emit({ type: "sync", policyVersion: version, ...report });
  }

  private async startEval(): Promise<void> {
    const { evaluate } = this.services;
    if (!evaluate) return;
    if (this.evalLags) {
      await this.evaluation;
      await this.services.sync(this.buffer.engineVersion, ["eval"]);
      this.evalLags = false;
    }
    const { step } = this;
    const policyVersion = this.buffer.engineVersion;
    this.evaluatedStep = step;
    this.evaluating++;
    const work = this.evaluation.then(() => evaluate(step, this.abort.signal));
    this.evaluation = work.then(
      (metrics) => {
        this.evaluating--;
        if (!this.ending) this.log.emit({ type: "eval", step, policyVersion, metrics });
      },
      (error) => {
        if (!this.ending) throw error;
      },
    );
    this.evaluation.catch(this.failure.reject);
  }

  private async save(): Promise<void> {
    if (this.failed) return;
    // What was dropped since the batch: the checkpoint knows of it.
    while (this.discarded.length > 0) await this.account(this.stepToSave, this.discarded.splice(0));
    if (this.savedStep === this.step) return;
    this.savedStep = this.step;
    const { buffer, step, skippedInARow } = this;
    const progress = { step, policyVersion: buffer.trainerVersion, skippedInARow, untrained: buffer.untrained };
    await this.clock.measure("checkpoint", this.services.checkpoint(progress));
  }
}

function solveRate(rollouts: Rollout[]): number | undefined {
  return rollouts.length > 0 ? mean(rollouts.map(({ score }) => score)) : undefined;
}

function recordOf(group: Group, reasons: TrainOutcome["dropped"], values: TrainOutcome["values"]): GroupRecord {
  const reason = reasons.get(group.groupId);
  const trained = values?.get(group.groupId);
  return { group, ...(reason !== undefined && { dropped: { reason } }), ...(trained && { trained }) };
}
