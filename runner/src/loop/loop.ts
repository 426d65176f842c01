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
import type { FailedRollout, Group, Rollout } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import type { Prompt, PromptQueue } from "../data/order.ts";
import { DeadlineError, deadlineMs, withDeadline } from "../deadline.ts";
import { failure } from "../deferred.ts";
import type { SyncResult } from "../engines/weight-sync.ts";
import { RunnerError } from "../errors.ts";
import type { EventLog } from "../telemetry/log.ts";
import type { TrainResult } from "../trainer/train-batch.ts";
import { ageOf } from "./staleness.ts";
import { WorkBuffer } from "./work-buffer.ts";

/** Without an update, the step only consumed its batch. */
export type TrainOutcome = Omit<TrainResult, "tokens">;

export interface LoopServices {
  /** Resolves with data for either outcome; rejects on a bug. */
  rollout(prompt: Prompt, groupId: string, rolloutId: string, signal: AbortSignal): Promise<Rollout | FailedRollout>;
  train(groups: Group[], step: number): Promise<TrainOutcome>;
  /** Every engine, verified. */
  sync(version: number): Promise<SyncResult>;
  /** At the engines' version; null without an eval set. */
  evaluate: ((signal: AbortSignal) => Promise<Record<string, number>>) | null;
  storeRollouts(step: number, groups: Group[]): Promise<void>;
  checkpoint(loop: LoopProgress): Promise<void>;
  /** When a process that the run needs is gone. */
  died: Promise<never>;
}

export interface LoopOptions {
  /** Null: until the prompts end. */
  steps: number | null;
  batchSize: number;
  samplesPerPrompt: number;
  minGroup: number;
  maxStaleness: number;
  maxInFlight: number | null;
  /** Seconds. */
  groupTimeout: number;
  evalSteps: number;
  evalAtStart: boolean;
  saveSteps: number;
  stopAfterSkipped: number;
}

export interface LoopProgress {
  step: number;
  policyVersion: number;
  skippedInARow: number;
  untrained: Group[];
}

export class TrainingLoop {
  private readonly options: LoopOptions;
  private readonly services: LoopServices;
  private readonly prompts: PromptQueue;
  private readonly log: EventLog;
  private readonly buffer: WorkBuffer;
  private readonly promptOf = new Map<string, Prompt>();
  private readonly abort = new AbortController();
  private evaluation: Promise<void> = Promise.resolve();
  private step: number;
  private savedStep: number;
  private skippedInARow: number;
  private droppedInARow: string[] = [];
  private failed = false;
  private evaluatedStep: number | null = null;
  /** Outside the train task. */
  private readonly failure = failure();

  constructor(
    options: LoopOptions,
    services: LoopServices,
    prompts: PromptQueue,
    log: EventLog,
    restored: LoopProgress | null,
  ) {
    this.options = options;
    this.services = services;
    this.prompts = prompts;
    this.log = log;
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

  get progress(): LoopProgress {
    const { buffer, step, skippedInARow } = this;
    return { step, policyVersion: buffer.trainerVersion, skippedInARow, untrained: buffer.untrained };
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
    const { samplesPerPrompt, minGroup } = this.options;
    const members = Array.from({ length: samplesPerPrompt }, (_, member) =>
      this.services.rollout(prompt, groupId, `${groupId}/${member}`, this.abort.signal),
    );
    const outcomes = await Promise.all(members);
    if (this.ending || !this.buffer.isLive(groupId)) return;
    const rollouts = outcomes.filter((outcome) => "segments" in outcome);
    const failed = outcomes.filter((outcome): outcome is FailedRollout => !("segments" in outcome));
    for (const { promptId, rolloutId, attempt, reason, message } of failed) {
      this.log.emit({ type: "rollout_failed", promptId, groupId, rolloutId, attempt, reason, message });
    }
    if (rollouts.length < minGroup) {
      this.drop(groupId, failed[0]?.reason ?? "min_group", failed[0]?.message);
      return;
    }
    this.droppedInARow = [];
    const { promptId, epoch, attempt } = prompt;
    this.buffer.finish({ groupId, promptId, epoch, admittedVersion, attempt, rollouts, failed });
  }

  /** Frees the group's place; its prompt is given back until its attempts are used up. */
  private drop(groupId: string, reason: string, detail = reason): void {
    const prompt = this.promptOf.get(groupId)!;
    const requeued = this.prompts.giveBack(prompt);
    const { promptId, epoch, attempt } = prompt;
    // The checkpoint that knows of it: a resume supersedes later steps.
    const step = this.savedStep === this.step ? this.step + 1 : this.step;
    this.log.emit({ type: "group", groupId, promptId, epoch, attempt, outcome: "dropped", reason, requeued, step });
    this.promptOf.delete(groupId);
    this.buffer.remove(groupId);
    this.droppedInARow.push(reason);
    const limit = Math.max(8, 2 * this.options.batchSize);
    if (this.droppedInARow.length >= limit) {
      const names = [...new Set(this.droppedInARow)];
      const count = (name: string) => this.droppedInARow.filter((one) => one === name).length;
      const reasons = names.map((name) => `${name}: ${count(name)}`).join(", ");
      throw new RunnerError(`${limit} groups in a row were dropped (${reasons}); the last one: ${detail}`);
    }
  }

  // train

  private async train(interrupted: AbortSignal): Promise<void> {
    while (this.options.steps === null || this.step < this.options.steps) {
      const groups = await this.nextBatch(interrupted);
      if (!groups) break;
      await this.trainStep(groups);
      if (this.failed) return;
      if (interrupted.aborted) break;
      if (this.options.evalSteps > 0 && this.step % this.options.evalSteps === 0) this.startEval();
      if (this.options.saveSteps > 0 && this.step % this.options.saveSteps === 0) await this.save();
    }
    if (!interrupted.aborted) {
      await this.evaluation;
      if (this.step !== this.evaluatedStep) this.startEval();
      await this.evaluation;
    }
    await this.save();
  }

  /** Null at the end of the prompts or at an interrupt. */
  private async nextBatch(interrupted: AbortSignal): Promise<Group[] | null> {
    for (;;) {
      if (interrupted.aborted) return null;
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
    const startedAt = performance.now();
    const { metrics, updates, dropped, skipped } = await this.services.train(groups, this.step + 1);
    if (this.failed) return;
    this.step += 1;
    const trainedAt = performance.now();
    const ages = ageOf(groups, this.buffer.trainerVersion);
    this.consume(groups, dropped);
    // At once: what the freed places admit counts from the new version.
    if (updates > 0) this.buffer.trainerVersion += 1;
    await this.services.storeRollouts(this.step, groups);
    if (updates > 0) {
      const sync = await this.sync();
      const seconds = { train_seconds: (trainedAt - startedAt) / 1000, sync_seconds: sync.seconds };
      this.log.emit({
        type: "step",
        step: this.step,
        policyVersion: this.buffer.trainerVersion,
        metrics: { ...metrics, ...ages, ...seconds, live_groups: this.buffer.liveCount },
      });
    }
    this.countSkipped(skipped, updates);
  }

  private countSkipped(skipped: TrainOutcome["skipped"], updates: number): void {
    this.skippedInARow = skipped ? this.skippedInARow + 1 : 0;
    if (!skipped) return;
    const { reason, detail } = skipped;
    if (updates === 0) this.log.emit({ type: "step_skipped", step: this.step, reason, detail });
    else {
      const made = `${updates} update${updates === 1 ? "" : "s"}`;
      this.log.emit({ type: "warning", message: `step ${this.step} broke off after ${made} (${reason}): ${detail}` });
    }
    if (this.skippedInARow < this.options.stopAfterSkipped) return;
    throw new RunnerError(`${this.skippedInARow} steps in a row were skipped: ${detail}`);
  }

  private consume(groups: Group[], dropped: TrainOutcome["dropped"]): void {
    for (const { groupId, promptId, attempt, rollouts } of groups) {
      const prompt = this.promptOf.get(groupId)!;
      this.prompts.consume(prompt);
      const reward = mean(rollouts.map((rollout) => rollout.reward));
      const reason = dropped.get(groupId);
      const became =
        reason === undefined
          ? ({ outcome: "trained" } as const)
          : ({ outcome: "dropped", reason, requeued: false } as const);
      const { epoch } = prompt;
      this.log.emit({ type: "group", groupId, promptId, epoch, attempt, ...became, step: this.step, reward });
      this.promptOf.delete(groupId);
    }
    this.buffer.consumed(groups);
  }

  // sync and eval

  /** After a running eval: its engines are pinned to its version. */
  private async sync(): Promise<SyncResult> {
    await this.evaluation;
    const version = this.buffer.trainerVersion;
    const heldSince = Date.now();
    const report = await this.services.sync(version);
    this.buffer.postponeDeadlines(Date.now() - heldSince);
    this.buffer.engineVersion = version;
    this.buffer.notify();
    this.log.emit({ type: "sync", policyVersion: version, ...report });
    return report;
  }

  private startEval(): void {
    const { evaluate } = this.services;
    if (!evaluate) return;
    const { step } = this;
    const policyVersion = this.buffer.engineVersion;
    this.evaluatedStep = step;
    this.evaluation = this.evaluation.then(async () => {
      try {
        const metrics = await evaluate(this.abort.signal);
        if (!this.ending) this.log.emit({ type: "eval", step, policyVersion, metrics });
      } catch (error) {
        if (!this.ending) throw error;
      }
    });
    this.evaluation.catch(this.failure.reject);
  }

  private async save(): Promise<void> {
    if (this.savedStep === this.step) return;
    this.savedStep = this.step;
    await this.services.checkpoint(this.progress);
  }
}
