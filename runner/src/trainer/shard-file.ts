/** A rank's part of a checkpoint: safetensors of weights and both moments, and what must fit. */
import { createHash } from "node:crypto";
import { createWriteStream, existsSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import type { UnitDescription } from "molt-native";
import { buildSafetensorsHeader, readSafetensorsHeader } from "../data/safetensors.ts";
import { RunnerError } from "../errors.ts";
import { namelessFile } from "../files.ts";

/** Those of a rank that are trained. */
export type TrainedModel = "policy" | "critic";

export interface ShardIdentity {
  model: TrainedModel;
  rank: number;
  worldSize: number;
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
  return buildSafetensorsHeader(tensors, { ...describe(identity), step_count: String(stepCount) });
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

/** Byte offset of the arrays, and the optimizer's steps; one error names all that does not fit. */
export function readShard(file: string, identity: ShardIdentity): { offset: number; stepCount: number } {
  if (!existsSync(file)) {
    throw new RunnerError("this checkpoint has no such shard", {
      position: { file },
      fix: "resume an older checkpoint, or with the estimator under which this was written",
    });
  }
  const { metadata, entries, dataOffset } = readSafetensorsHeader(file);
  const problems = Object.entries(describe(identity))
    .filter(([key, value]) => metadata[key] !== value)
    .map(([key, value]) => `${key} is ${metadata[key] ?? "missing"}, this run has ${value}`);
  const [names, wanted] = [entries.map(({ name }) => name), arraysOf(identity.model)].map((all) => all.join(", "));
  if (names !== wanted) problems.push(`it holds ${names}, not ${wanted}`);
  const stepCount = Number(metadata.step_count);
  if (!Number.isSafeInteger(stepCount) || stepCount < 0) problems.push(`step_count is ${metadata.step_count}`);
  if (problems.length > 0) {
    throw new RunnerError(`this shard does not fit the run: ${problems.join("; ")}`, {
      position: { file },
      fix: "resume with the model and the number of ranks that wrote it",
    });
  }
  return { offset: dataOffset, stepCount };
}

/** Whether it holds weights of these parameters. */
export function isOfModel(file: string, units: UnitDescription[]): boolean {
  return readSafetensorsHeader(file).metadata.units === unitTable(units);
}

function describe({ rank, worldSize, shardSize, units, base }: ShardIdentity): Record<string, string> {
  return {
    format_version: "1",
    rank: String(rank),
    world_size: String(worldSize),
    shard_size: String(shardSize),
    units: unitTable(units),
    ...(base && { base }),
  };
}

function unitTable(units: UnitDescription[]): string {
  return createHash("sha256").update(JSON.stringify(units)).digest("hex");
}
