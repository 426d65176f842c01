import { createHash } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import type { Group } from "../agents/types.ts";
import type { PromptQueueState } from "../data/order.ts";
import { pack, unpack } from "../encoding.ts";
import { RunnerError } from "../errors.ts";

/** What the loop needs to go on, beside the ranks' shards. */
export interface LoopState {
  format: 1;
  step: number;
  policyVersion: number;
  /** Optimizer updates made: where the learning-rate schedule stands. */
  updates: number;
  skippedInARow: number;
  /** The consumed frontier of the data and the attempts of what was given back (`PromptQueue.serialize`). */
  prompts: PromptQueueState;
  /** Finished groups that no batch has taken. */
  untrained: Group[];
  datasetFingerprint: string;
  worldSize: number;
}

interface Manifest {
  format: 1;
  step: number;
  files: Record<string, { bytes: number; sha256: string }>;
}

const directoryPattern = /^step-(\d{6,})$/;

/**
 * Writes `checkpoints/step-N` aside, fsyncs, writes the manifest last, and renames: a directory of that name is complete
 * or is found out by its manifest. `saveShards` fills the directory with the ranks' files.
 */
export async function saveCheckpoint(
  root: string,
  state: LoopState,
  saveShards: (directory: string) => Promise<unknown>,
): Promise<string> {
  const name = `step-${String(state.step).padStart(6, "0")}`;
  const aside = join(root, `${name}.part`);
  rmSync(aside, { recursive: true, force: true });
  mkdirSync(aside, { recursive: true });
  await saveShards(aside);
  writeSynced(join(aside, "loop.msgpack"), pack(state));
  const files = Object.fromEntries(readdirSync(aside).map((file) => [file, fingerprintFile(join(aside, file))]));
  const manifest: Manifest = { format: 1, step: state.step, files };
  writeSynced(join(aside, "manifest.json"), JSON.stringify(manifest, null, 2));
  syncDirectory(aside);
  const final = join(root, name);
  // One of this name can only be a broken one: a run goes on from its newest complete checkpoint.
  rmSync(final, { recursive: true, force: true });
  renameSync(aside, final);
  syncDirectory(root);
  return final;
}

/** The newest complete checkpoint, with its state; what is broken is passed over, and named through `onBroken`. */
export function findCheckpoint(
  root: string,
  onBroken: (message: string) => void,
): { directory: string; state: LoopState } | null {
  for (const { name, directory } of listCheckpoints(root).reverse()) {
    const problem = verify(directory);
    if (problem) {
      onBroken(`checkpoint ${name} is passed over: ${problem}`);
      continue;
    }
    return { directory, state: readState(directory) };
  }
  return null;
}

/** Removes the oldest beyond `keep`; a directory that cannot be removed is named, not fatal. */
export function pruneCheckpoints(root: string, keep: number, onProblem: (message: string) => void): void {
  const all = listCheckpoints(root);
  for (const { directory, name } of all.slice(0, Math.max(0, all.length - keep))) {
    try {
      rmSync(directory, { recursive: true });
    } catch (error) {
      onProblem(`old checkpoint ${name} stays: ${(error as Error).message}`);
    }
  }
}

function listCheckpoints(root: string): { name: string; directory: string; step: number }[] {
  if (!existsSync(root)) return [];
  return readdirSync(root)
    .flatMap((name) => {
      const match = directoryPattern.exec(name);
      return match ? [{ name, directory: join(root, name), step: Number(match[1]) }] : [];
    })
    .sort((one, other) => one.step - other.step);
}

function verify(directory: string): string | null {
  const path = join(directory, "manifest.json");
  if (!existsSync(path)) return "it has no manifest";
  let manifest: Manifest;
  try {
    manifest = JSON.parse(readFileSync(path, "utf8"));
  } catch {
    return "its manifest is not JSON";
  }
  if (manifest.format !== 1) return `its format is ${manifest.format}, this version reads 1`;
  for (const [file, expected] of Object.entries(manifest.files)) {
    const full = join(directory, file);
    if (!existsSync(full)) return `${file} is missing`;
    const found = fingerprintFile(full);
    if (found.bytes !== expected.bytes) return `${file} has ${found.bytes} bytes of ${expected.bytes}`;
    if (found.sha256 !== expected.sha256) return `${file} does not match its checksum`;
  }
  return null;
}

function readState(directory: string): LoopState {
  const state = unpack(readFileSync(join(directory, "loop.msgpack"))) as LoopState;
  if (state.format !== 1)
    throw new RunnerError(`${directory}: loop state of format ${state.format}, this version reads 1`);
  return state;
}

function fingerprintFile(path: string): { bytes: number; sha256: string } {
  const hash = createHash("sha256");
  const chunk = Buffer.alloc(1 << 20);
  const file = openSync(path, "r");
  try {
    for (let read = readSync(file, chunk); read > 0; read = readSync(file, chunk)) hash.update(chunk.subarray(0, read));
  } finally {
    closeSync(file);
  }
  return { bytes: statSync(path).size, sha256: hash.digest("hex") };
}

function writeSynced(path: string, data: string | Uint8Array): void {
  const file = openSync(path, "w");
  try {
    writeFileSync(file, data);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

function syncDirectory(path: string): void {
  const handle = openSync(path, "r");
  try {
    fsyncSync(handle);
  } finally {
    closeSync(handle);
  }
}
