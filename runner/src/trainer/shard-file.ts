/**
 * A rank's part of a checkpoint: safetensors of weights and both moments, each one array, with a table of the pieces of
 * parameters in it (`Piece`), so that any number of ranks, in any mesh, can load what any other wrote.
 */
import { createWriteStream, existsSync } from "node:fs";
import { type FileHandle, open, statfs } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import type { UnitDescription } from "molt-native";
import { buildSafetensorsHeader, readSafetensorsHeader } from "../data/safetensors.ts";
import { RunnerError } from "../errors.ts";
import { namelessFile, sha256 } from "../files.ts";
import { type Piece, type ShardPlace, shardTable } from "./shard-layout.ts";

/** Those of a rank that are trained. */
export type TrainedModel = "policy" | "critic";

export interface ShardIdentity extends ShardPlace {
  model: TrainedModel;
  /** float32 values in each array. */
  shardSize: number;
  units: UnitDescription[];
  /** Checksum of what adapters are laid on, where there are: the arrays are theirs alone. */
  base: string | null;
}

const arraysOf = (model: TrainedModel) => ["weights", "exp_avg", "exp_avg_sq"].map((name) => `${model}.${name}`);

export function shardPath(directory: string, rank: number, model: TrainedModel = "policy"): string {
  return join(directory, `${model === "policy" ? "" : `${model}-`}rank${rank}.safetensors`);
}

export function shardHeader(identity: ShardIdentity, stepCount: number): Uint8Array {
  const tensors = arraysOf(identity.model).map((name) => ({ name, shape: [identity.shardSize] }));
  const table = JSON.stringify(shardTable(identity.units, identity));
  return buildSafetensorsHeader(tensors, { ...describe(identity), step_count: String(stepCount), table });
}

const memory = "/dev/shm";

/**
 * Has a shard saved in memory, where there is room, and gives what takes it from there to `file`, fsynced. Without room
 * it is saved to the file itself.
 */
export async function snapshotShard(
  file: string,
  identity: ShardIdentity,
  save: (path: string) => Promise<void>,
): Promise<() => Promise<void>> {
  const { bavail, bsize } = await statfs(memory).catch(() => ({ bavail: 0, bsize: 0 }));
  if (bavail * bsize < 2 * arraysOf(identity.model).length * 4 * identity.shardSize)
    return save(file).then(() => async () => {});
  const { handle, path } = await namelessFile(memory);
  try {
    await save(path);
  } catch (error) {
    await handle.close();
    throw error;
  }
  return () => pipeline(handle.createReadStream({ start: 0 }), createWriteStream(file, { flush: true }));
}

/** A shard that is opened to be loaded; `close` when it is. */
export interface OpenShard {
  path: string;
  /** Of the arrays, in bytes. */
  offset: number;
  /** The optimizer's. */
  stepCount: number;
  close(): Promise<void>;
}

/** This rank's, or one made of all that other ranks, or other meshes, wrote; an error names what does not fit. */
export async function openShard(directory: string, identity: ShardIdentity): Promise<OpenShard> {
  const { model, rank } = identity;
  const first = readShard(shardPath(directory, 0, model), identity);
  const own = shardPath(directory, rank, model);
  const { world_size: ranks, expert_size: places = "1" } = first.metadata;
  const isSame =
    ranks === String(identity.worldSize) &&
    places === String(identity.expertSize) &&
    first.arraySize === identity.shardSize;
  if (isSame) return { ...readShard(own, identity), path: own, close: async () => {} };
  const files = Array.from({ length: Number(ranks) }, (_, at) => shardPath(directory, at, model));
  const { handle, path } = await namelessFile(tmpdir());
  const close = () => handle.close();
  try {
    const shards = files.map((file) => ({ file, ...readShard(file, identity) }));
    await gather(shards, identity, handle);
    return { path, offset: 0, stepCount: first.stepCount, close };
  } catch (error) {
    await close();
    throw error;
  }
}

type Stored = ReturnType<typeof readShard> & { file: string };

/** Writes the arrays of this rank to `target`, of pieces that lie in several shards. */
async function gather(shards: Stored[], identity: ShardIdentity, target: FileHandle): Promise<void> {
  const { model, units, shardSize } = identity;
  const arrays = arraysOf(model);
  await target.truncate(4 * arrays.length * shardSize);
  const missing = new Map(shardTable(units, identity).map((piece) => [piece[0], piece]));
  const left = new Map([...missing].map(([name, [, , count]]) => [name, count]));
  const known = units.flatMap(({ parameters }) => parameters);
  const frozen = new Set(
    known.filter(({ role }) => identity.freezeRouter && role === "router").map(({ name }) => name),
  );
  for (const { file, offset, arraySize, table } of shards) {
    const source = await open(file);
    try {
      for (const [name, start, count, at] of table) {
        if (frozen.has(name)) {
          throw new RunnerError(`the checkpoint has trained ${name}, which would be lost`, {
            fix: "leave actor.freeze_moe_router false, or start a new run from its export",
          });
        }
        const [, first, wanted, to] = missing.get(name) ?? [name, 0, 0, 0];
        const [from, end] = [Math.max(first, start), Math.min(first + wanted, start + count)];
        if (from >= end) continue;
        for (const array of arrays.keys()) {
          const place = offset + 4 * (array * arraySize + at + from - start);
          await copyBytes(source, place, target, 4 * (array * shardSize + to + from - first), 4 * (end - from));
        }
        left.set(name, left.get(name)! - (end - from));
      }
    } finally {
      await source.close();
    }
  }
  const [lacking] = [...left].find(([, count]) => count !== 0) ?? [];
  if (lacking !== undefined) throw new RunnerError(`the checkpoint's shards do not hold all of ${lacking}`);
}

const copiedAtOnce = 2 ** 24;

async function copyBytes(source: FileHandle, from: number, target: FileHandle, to: number, length: number) {
  const buffer = Buffer.alloc(Math.min(length, copiedAtOnce));
  for (let done = 0; done < length; done += buffer.length) {
    const { bytesRead } = await source.read(buffer, 0, Math.min(buffer.length, length - done), from + done);
    await target.write(buffer, 0, bytesRead, to + done);
    if (bytesRead < Math.min(buffer.length, length - done)) throw new RunnerError("a shard is cut off");
  }
}

/** Where a shard's arrays lie, and what is in them; one error names all that does not fit. */
function readShard(file: string, identity: ShardIdentity) {
  if (!existsSync(file)) {
    throw new RunnerError("this checkpoint has no such shard", {
      position: { file },
      fix: "resume an older checkpoint, or with the estimator under which this was written",
    });
  }
  const { metadata, entries, dataOffset: offset } = readSafetensorsHeader(file);
  const wantedOf = describe(identity);
  const problems = ["format_version", "units", "base"]
    .filter((key) => metadata[key] !== wantedOf[key])
    .map((key) => `${key} is ${metadata[key] ?? "missing"}, this run has ${wantedOf[key] ?? "none"}`);
  const [names, wanted] = [entries.map(({ name }) => name), arraysOf(identity.model)].map((all) => all.join(", "));
  if (names !== wanted) problems.push(`it holds ${names}, not ${wanted}`);
  const stepCount = Number(metadata.step_count);
  if (!Number.isSafeInteger(stepCount) || stepCount < 0) problems.push(`step_count is ${metadata.step_count}`);
  if (problems.length > 0) {
    throw new RunnerError(`this shard does not fit the run: ${problems.join("; ")}`, {
      position: { file },
      fix: "resume with the model that wrote it",
    });
  }
  const table = JSON.parse(metadata.table!) as Piece[];
  return { metadata, offset, stepCount, arraySize: entries[0]!.shape[0]!, table };
}

/** Whether it holds weights of these parameters. */
export function isOfModel(file: string, units: UnitDescription[]): boolean {
  return readSafetensorsHeader(file).metadata.units === sha256(JSON.stringify(units));
}

function describe({ worldSize, expertSize, units, base }: ShardIdentity): Record<string, string> {
  return {
    format_version: "1",
    world_size: String(worldSize),
    expert_size: String(expertSize),
    units: sha256(JSON.stringify(units)),
    ...(base && { base }),
  };
}
