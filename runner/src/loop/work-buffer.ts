import type { Group } from "../agents/types.ts";

export interface WorkBufferOptions {
  /** B: groups a train step consumes. */
  batchSize: number;
  /** S: policy versions a row may lag when trained. */
  maxStaleness: number;
  /** Groups generated at once; null: bounded by staleness alone. */
  maxInFlight: number | null;
  /** False: the remainder trains as a short batch. */
  morePrompts: () => boolean;
}

interface LiveGroup {
  groupId: string;
  /** The engines': no token of the group is older. */
  admittedVersion: number;
  deadlineAt: number;
  finished: Group | null;
}

/** `wait` names the groups it waits for, if particular ones. */
export type BatchDecision =
  | { kind: "batch"; groups: Group[] }
  | { kind: "wait"; deadlineAt: number | null; blockedBy: string[] }
  | { kind: "end" };

/**
 * The groups between admission and training. Staleness is kept by admission, not by discarding. With t the trainer's
 * version, p the engines', L the live groups (admitted and not yet trained), B the batch and S the bound: a group is
 * admitted iff t + floor(L / B) - p <= S. A dropped group frees its place.
 */
export class WorkBuffer {
  trainerVersion = 0;
  engineVersion = 0;
  /** In order of admission. */
  private readonly live = new Map<string, LiveGroup>();
  private waiters: (() => void)[] = [];

  constructor(private readonly options: WorkBufferOptions) {}

  get liveCount(): number {
    return this.live.size;
  }

  get runningCount(): number {
    return [...this.live.values()].filter((group) => !group.finished).length;
  }

  isLive(groupId: string): boolean {
    return this.live.has(groupId);
  }

  overdue(now: number): string[] {
    return [...this.live.values()].filter((group) => !group.finished && group.deadlineAt <= now).map((g) => g.groupId);
  }

  /** A weight sync held every request for `ms`, no group's fault. */
  postponeDeadlines(ms: number): void {
    for (const group of this.live.values()) group.deadlineAt += ms;
  }

  /** Finished: a checkpoint, between batches, carries them. */
  get untrained(): Group[] {
    return [...this.live.values()].flatMap((group) => group.finished ?? []);
  }

  hasRoom(): boolean {
    const { batchSize, maxStaleness, maxInFlight } = this.options;
    if (maxInFlight !== null && this.runningCount >= maxInFlight) return false;
    const age = this.trainerVersion + Math.floor(this.live.size / batchSize) - this.engineVersion;
    return age <= maxStaleness;
  }

  admit(groupId: string, deadlineAt: number): void {
    const admittedVersion = this.engineVersion;
    this.live.set(groupId, { groupId, admittedVersion, deadlineAt, finished: null });
  }

  restore(group: Group): void {
    const { groupId, admittedVersion } = group;
    this.live.set(groupId, { groupId, admittedVersion, deadlineAt: 0, finished: group });
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
   * Takes finished groups, oldest first, but waits for unfinished ones that later batches could not take in time, to
   * their deadlines.
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
    if (blocking.length > 0) return this.waitFor(blocking);
    return { kind: "batch", groups: batch.map((entry) => entry.finished!) };
  }

  /**
   * The unfinished groups of `rest` that make the batch at hand too late for some. Admitted at version v, a group
   * trains at v + S at the latest, and each later batch takes B groups.
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

  /** At the next change of anything here. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.waiters.push(resolve));
  }

  notify(): void {
    const waiters = this.waiters;
    this.waiters = [];
    for (const wake of waiters) wake();
  }

  private waitFor(groups: LiveGroup[]): BatchDecision {
    const deadlineAt = groups.length > 0 ? Math.min(...groups.map((group) => group.deadlineAt)) : null;
    return { kind: "wait", deadlineAt, blockedBy: groups.map((group) => group.groupId) };
  }
}
