/**
 * A run's rollouts, token by token: `rollouts/shard-NNNNNN.msgpack` holds steps from NNNNNN on, up to the next shard's;
 * `eval-NNNNNN.msgpack` those of the eval at step NNNNNN.
 * It is frames, each a length of 4 bytes and a `StoredGroup` as msgpack; a killed writer leaves half a frame, or zeros
 * in the place of what the disk had not taken yet.
 */
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readSync } from "node:fs";
import { mkdir, open, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Group, Segment } from "../agents/types.ts";
import { pack, unpack } from "../encoding.ts";
import { messageOf, RunnerError, usageError } from "../errors.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { withoutSecrets } from "../secret.ts";

/** What became of a group's rollouts. */
export interface GroupRecord {
  group: Group;
  /** Nothing of it was trained. */
  dropped?: { reason: string };
  /** By row: `<rolloutId>/<segment>`. */
  trained?: Record<string, TrainedValues>;
}

/** What training made of a row, each `[trained tokens]`, in their order: `logprobs` by the trainer, nats of entropy. */
export interface TrainedValues {
  advantages: Float32Array;
  logprobs: Float32Array;
  entropy: Float32Array;
}

export interface StoredGroup extends GroupRecord {
  /** That consumed the group, or before which it was dropped. */
  step: number;
}

const format = 1;
/** Packed at once; between them other work goes on. */
const groupsAtOnce = 32;

/** Writes in the background, a step behind at most. What cannot be stored is counted and never stops a run. */
export class RolloutStore {
  private readonly folder: string;
  private shard: { path: string; bytes: number; step: number } | null = null;
  private writing: Promise<void> = Promise.resolve();
  private lostSteps = 0;

  /** Of every n-th step, 0: none. A shard that has passed `shardBytes` is followed by another. */
  constructor(
    runDirectory: string,
    private readonly warn: (message: string) => void,
    private readonly everySteps = 1,
    private readonly shardBytes = 64 * 2 ** 20,
  ) {
    this.folder = join(runDirectory, "rollouts");
  }

  /** Resolves when those before are written: at most two steps wait in memory. */
  async add(step: number, groups: GroupRecord[]): Promise<void> {
    if (this.everySteps === 0 || step % this.everySteps > 0) return;
    await this.writing;
    this.writing = this.write(step, groups).catch((error) => {
      // What comes next does not go behind half a frame.
      this.shard = null;
      if (this.lostSteps++ === 0) this.warn(`rollouts of step ${step} are not stored: ${messageOf(error)}`);
    });
  }

  /** Of an eval at a step, whole: another of that step takes its place. None is trained: they are dropped as "eval". */
  async addEval(step: number, groups: Group[]): Promise<void> {
    if (this.everySteps === 0) return;
    try {
      await mkdir(this.folder, { recursive: true });
      const frames = groups.flatMap((group) => frameOf(step, { group, dropped: { reason: "eval" } }));
      await writeFile(join(this.folder, `eval-${String(step).padStart(6, "0")}.msgpack`), frames);
    } catch (error) {
      this.warn(`rollouts of the eval at step ${step} are not stored: ${messageOf(error)}`);
    }
  }

  async flush(): Promise<void> {
    await this.writing;
  }

  private async write(step: number, groups: GroupRecord[]): Promise<void> {
    const isFull = this.shard !== null && this.shard.bytes > this.shardBytes && this.shard.step < step;
    if (this.shard === null || isFull) this.shard = await this.begin(step);
    this.shard.step = step;
    const file = await open(this.shard.path, this.shard.bytes === 0 ? "w" : "a");
    try {
      for (let at = 0; at < groups.length; at += groupsAtOnce) {
        const frames = groups.slice(at, at + groupsAtOnce).flatMap((record) => frameOf(step, record));
        const bytes = Buffer.concat(frames);
        // All of it or an error: a full disk takes a part.
        await file.appendFile(bytes);
        this.shard.bytes += bytes.length;
      }
    } finally {
      await file.close();
    }
  }

  /** A resumed run writes later steps again: what it had of them goes. */
  private async begin(step: number): Promise<{ path: string; bytes: number; step: number }> {
    await mkdir(this.folder, { recursive: true });
    const later = (await readdir(this.folder)).filter((name) => Math.max(firstStepOf(name), evalStepOf(name)) > step);
    await Promise.all(later.map((name) => rm(join(this.folder, name))));
    return { path: join(this.folder, `shard-${String(step).padStart(6, "0")}.msgpack`), bytes: 0, step };
  }
}

/** The stored groups of a run, of one step, or those that mention a text; oldest first. */
export async function* readRollouts(
  runDirectory: string,
  { step, mentioning }: { step?: number; mentioning?: string } = {},
): AsyncGenerator<StoredGroup> {
  const folder = join(runDirectory, "rollouts");
  const [from, to] = [step ?? 0, step ?? Infinity];
  const names = existsSync(folder) ? readdirSync(folder) : [];
  const evals = names.filter((name) => evalStepOf(name) >= from && evalStepOf(name) <= to);
  evals.sort((one, other) => evalStepOf(one) - evalStepOf(other));
  /** After the step's training. */
  const evalsBefore = function* (step: number) {
    while (evals.length > 0 && evalStepOf(evals[0]!) < step) yield* readShard(join(folder, evals.shift()!), mentioning);
  };
  const shards = names.filter((name) => firstStepOf(name) >= 0);
  shards.sort((one, other) => firstStepOf(one) - firstStepOf(other));
  for (const [index, name] of shards.entries()) {
    const end = index + 1 < shards.length ? firstStepOf(shards[index + 1]!) : Infinity;
    if (to < firstStepOf(name) || from >= end) continue;
    for (const stored of readShard(join(folder, name), mentioning)) {
      if (stored.step >= end || stored.step < from || stored.step > to) continue;
      yield* evalsBefore(stored.step);
      yield stored;
    }
  }
  yield* evalsBefore(Infinity);
}

/** The rollout, with the group that it was sampled in. */
export async function findRollout(runDirectory: string, rolloutId: string) {
  const { rollouts, ...stored } = await findRollouts(runDirectory, rolloutId);
  const rollout = rollouts.find((one) => one.rolloutId === rolloutId);
  if (!rollout) throw usageError(`${rolloutId} is a group: name one of its rollouts`);
  return { ...stored, rollout };
}

/** The rollout, or those of the group, that an id names, with their group; `step`, where it is known, is quicker. */
export async function findRollouts(runDirectory: string, id: string, step?: number) {
  for await (const stored of readRollouts(runDirectory, { step, mentioning: id })) {
    const rollouts = stored.group.rollouts.filter(({ groupId, rolloutId }) => groupId === id || rolloutId === id);
    if (rollouts.length > 0) return { ...stored, rollouts };
  }
  const fix = `molt-runner inspect ${displayPath(runDirectory)} lists those that are`;
  throw usageError(`the run has stored no rollout ${id}`, { fix });
}

function frameOf(step: number, { group, ...fate }: GroupRecord): Buffer[] {
  const failed = group.failed.map((one) => ({ ...one, message: withoutSecrets(one.message) }));
  const rollouts = group.rollouts.map((one) => ({ ...one, segments: one.segments.map(withoutRoutes) }));
  const frame = pack({ format, step, group: { ...group, rollouts, failed }, ...fate });
  const length = Buffer.alloc(4);
  length.writeUInt32LE(frame.length);
  return [length, frame];
}

/** They are larger than all else, and for training alone. */
function withoutRoutes({ routes, ...segment }: Segment): Segment {
  return segment;
}

/** -1: not an eval's. */
function evalStepOf(name: string): number {
  return Number(/^eval-(\d+)\.msgpack$/.exec(name)?.[1] ?? -1);
}

/** -1: not a shard. */
function firstStepOf(name: string): number {
  return Number(/^shard-(\d+)\.msgpack$/.exec(name)?.[1] ?? -1);
}

function* readShard(path: string, mentioning = ""): Generator<StoredGroup> {
  const file = openSync(path, "r");
  const length = Buffer.alloc(4);
  try {
    while (readSync(file, length) === length.length) {
      const size = length.readUInt32LE();
      const frame = Buffer.alloc(size);
      if (size === 0 || readSync(file, frame) < size) return;
      if (!frame.includes(mentioning)) continue;
      const read = unpackFrame(frame, file);
      if (read === null) return;
      const { format: written, ...stored } = read;
      const fix = "look at it with the version of molt-runner that wrote it";
      if (written !== format) throw new RunnerError(`${path} is of format ${written}, not ${format}`, { fix });
      yield stored;
    }
  } finally {
    closeSync(file);
  }
}

/** Null where it, and with it the file, ends in zeros. */
function unpackFrame(frame: Buffer, file: number): (StoredGroup & { format: number }) | null {
  try {
    return unpack(frame) as StoredGroup & { format: number };
  } catch (error) {
    if (frame.at(-1) === 0 && readFileSync(file).every((byte) => byte === 0)) return null;
    throw error;
  }
}
