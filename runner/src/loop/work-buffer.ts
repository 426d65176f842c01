import type { Group } from "../agents/types.ts";

export interface WorkBufferOptions {
  /** B: groups a train step consumes. */
  batchSize: number;
  /** S: policy versions a row may lag when trained. */
  maxStaleness: number;
  /** Groups generated at once; the staleness bound alone when null. */
  maxInFlight: number | null;
  /** False when no prompt is left to admit: the remainder then trains as a short batch. */
  morePrompts: () => boolean;
}

interface LiveGroup {
  groupId: string;
  /** Engines' version at admission: no token of the group is older. */
  admittedVersion: number;
  deadlineAt: number;
  /** Null while its rollouts run. */
  finished: Group | null;
  training: boolean;
}

/** What the train task should do now. `wait` names the oldest group it waits for, if a particular one. */
export type BatchDecision =
  | { kind: "batch"; groups: Group[] }
  | { kind: "wait"; deadlineAt: number | null; blockedBy: string[] }
  | { kind: "end" };

/**
 * The groups between admission and training, and the rule that bounds their age.
 *
 * Staleness is kept by admission, not by discarding. With t the trainer's version, p the engines', L the live groups
 * (admitted and not yet trained, those in training included), B the batch and S the bound: a group is admitted iff
 * t + floor(L / B) - p <= S. A dropped group frees its place.
 */
export class WorkBuffer {
  trainerVersion = 0;
  engineVersion = 0;
  private readonly options: WorkBufferOptions;
  /** In order of admission. */
  private readonly live = new Map<string, LiveGroup>();
  private waiters: (() => void)[] = [];

  constructor(options: WorkBufferOptions) {
    this.options = options;
  }

  get liveCount(): number {
    return this.live.size;
  }

  get runningCount(): number {
    return [...this.live.values()].filter((group) => !group.finished).length;
  }

  /** Live groups that no running step holds. */
  get notInTraining(): number {
    return [...this.live.values()].filter((group) => !group.training).length;
  }

  isLive(groupId: string): boolean {
    return this.live.has(groupId);
  }

  /** Unfinished groups whose deadline has passed. */
  overdue(now: number): string[] {
    return [...this.live.values()].filter((group) => !group.finished && group.deadlineAt <= now).map((g) => g.groupId);
  }

  /** A weight sync held every request for `ms`, which is no group's fault. */
  postponeDeadlines(ms: number): void {
    for (const group of this.live.values()) group.deadlineAt += ms;
  }

  /** Finished groups that no batch has taken: what a checkpoint carries. */
  get untrained(): Group[] {
    return [...this.live.values()].flatMap((group) => (group.finished && !group.training ? [group.finished] : []));
  }

  hasRoom(): boolean {
    const { batchSize, maxStaleness, maxInFlight } = this.options;
    if (maxInFlight !== null && this.runningCount >= maxInFlight) return false;
    const age = this.trainerVersion + Math.floor(this.live.size / batchSize) - this.engineVersion;
    return age <= maxStaleness;
  }

  admit(groupId: string, deadlineAt: number): void {
    const admittedVersion = this.engineVersion;
    this.live.set(groupId, { groupId, admittedVersion, deadlineAt, finished: null, training: false });
  }

  /** A finished group from a checkpoint takes its place again. */
  restore(group: Group): void {
    const { groupId, admittedVersion } = group;
    this.live.set(groupId, { groupId, admittedVersion, deadlineAt: 0, finished: group, training: false });
  }

  finish(group: Group): void {
    const entry = this.live.get(group.groupId);
    if (!entry) return; // dropped as stale meanwhile
    entry.finished = group;
    this.notify();
  }

  remove(groupId: string): void {
    this.live.delete(groupId);
    this.notify();
  }

  /**
   * A batch takes finished groups, oldest first. It does not close over unfinished groups that the batches after it
   * could no longer take in time: it waits for those, to their deadlines.
   */
  nextBatch(): BatchDecision {
    const { batchSize, morePrompts } = this.options;
    const entries = [...this.live.values()];
    const ready = entries.filter((group) => group.finished);
    const running = entries.filter((group) => !group.finished);
    const short = ready.length < batchSize;
    if (short && (running.length > 0 || morePrompts())) return this.waitFor(running);
    if (ready.length === 0) return { kind: "end" };
    const batch = ready.slice(0, batchSize);
    const blocking = this.lateAfter(entries.filter((group) => !batch.includes(group)));
    return blocking.length > 0 ? this.waitFor(blocking) : this.take(batch);
  }

  /**
   * Of `rest`, what the batch at hand leaves, the unfinished groups that make it too late for some. A group admitted at
   * version v trains at v + S at the latest, and each later batch takes B groups.
   */
  private lateAfter(rest: LiveGroup[]): LiveGroup[] {
    const { batchSize, maxStaleness } = this.options;
    for (let later = 0; later <= maxStaleness; later++) {
      const due = rest.filter((group) => group.admittedVersion + maxStaleness <= this.trainerVersion + 1 + later);
      const tooOld = due.some((group) => group.admittedVersion + maxStaleness <= this.trainerVersion);
      if (tooOld || due.length > (later + 1) * batchSize) return due.filter((group) => !group.finished);
    }
    return [];
  }

  /** The batch has trained (or was skipped): its groups leave. */
  consumed(groups: Group[]): void {
    for (const group of groups) this.live.delete(group.groupId);
    this.notify();
  }

  /** Resolves at the next change of anything here. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.waiters.push(resolve));
  }

  notify(): void {
    const waiters = this.waiters;
    this.waiters = [];
    for (const wake of waiters) wake();
  }

  private take(entries: LiveGroup[]): BatchDecision {
    for (const entry of entries) entry.training = true;
    return { kind: "batch", groups: entries.map((entry) => entry.finished!) };
  }

  private waitFor(groups: LiveGroup[]): BatchDecision {
    const deadlineAt = groups.reduce<number | null>(
      (first, { deadlineAt }) => Math.min(first ?? Infinity, deadlineAt),
      null,
    );
    return { kind: "wait", deadlineAt, blockedBy: groups.map((group) => group.groupId) };
  }
}
