import { createHash } from "node:crypto";
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
} from "node:fs";
import { join } from "node:path";
import type { Group } from "../agents/types.ts";
import type { PromptQueueState } from "../data/order.ts";
import { pack, unpack } from "../encoding.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { syncPath, writeSynced } from "../files.ts";

export interface LoopState {
  format: 1;
  step: number;
  policyVersion: number;
  updates: number;
  skippedInARow: number;
  /** Consumed places, and attempts given back. */
  prompts: PromptQueueState;
  untrained: Group[];
  datasetFingerprint: string;
  worldSize: number;
}

interface Manifest {
  /** Of the state, too. */
  format: 1;
  step: number;
  files: Record<string, { bytes: number; sha256: string }>;
}

const stateFile = "loop.msgpack";
const directoryPattern = /^step-(\d{6,})$/;
const partial = ".part";

/**
 * Writes `checkpoints/step-N` aside, fsyncs, the manifest last, and renames: a directory of that name is complete, or
 * its manifest tells. `saveShards` writes the ranks' files.
 */
export async function saveCheckpoint(
  root: string,
  state: LoopState,
  saveShards: (directory: string) => Promise<unknown>,
): Promise<string> {
  const final = join(root, `step-${String(state.step).padStart(6, "0")}`);
  const aside = `${final}${partial}`;
  try {
    rmSync(aside, { recursive: true, force: true });
    mkdirSync(aside, { recursive: true });
    await saveShards(aside);
    writeSynced(join(aside, stateFile), pack(state));
    const files = Object.fromEntries(readdirSync(aside).map((file) => [file, fingerprintFile(join(aside, file))]));
    const manifest: Manifest = { format: 1, step: state.step, files };
    writeSynced(join(aside, "manifest.json"), JSON.stringify(manifest, null, 2));
    syncPath(aside);
    // A broken one: a run goes on from its newest complete checkpoint.
    rmSync(final, { recursive: true, force: true });
    renameSync(aside, final);
    syncPath(root);
    return final;
  } catch (error) {
    throw new RunnerError(`checkpoint ${final} could not be written: ${messageOf(error)}`, {
      fix: "make room on the disk or mend the folder's rights, then resume the run from its checkpoint before",
      cause: error,
    });
  }
}

/** Removes what broken-off saves left. Nobody may be saving. */
export function removePartialCheckpoints(root: string): void {
  try {
    for (const name of readdirSync(root)) {
      if (name.endsWith(partial)) rmSync(join(root, name), { recursive: true, force: true });
    }
  } catch {
    // No such folder, or a failing disk: then that broke off the save, which reports it.
  }
}

/** The newest complete one; broken ones are passed over, and named through `onBroken`. */
export function findCheckpoint(
  root: string,
  onBroken: (message: string) => void,
): { directory: string; state: LoopState } | null {
  for (const { name, directory } of listCheckpoints(root).reverse()) {
    const problem = verify(directory);
    if (problem === null) return { directory, state: unpack(readFileSync(join(directory, stateFile))) as LoopState };
    onBroken(`checkpoint ${name} is passed over: ${problem}`);
  }
  return null;
}

/**
 * After saving `step`, removes the oldest beyond `keep`; what cannot be removed is named, not fatal. Those above
 * `step`, passed over by a resume, do not count, and stay until a save takes their name.
 */
export function pruneCheckpoints(root: string, step: number, keep: number, onProblem: (message: string) => void): void {
  const all = listCheckpoints(root).filter((checkpoint) => checkpoint.step <= step);
  for (const { directory, name } of all.slice(0, Math.max(0, all.length - keep))) {
    try {
      rmSync(directory, { recursive: true });
    } catch (error) {
      onProblem(`old checkpoint ${name} stays: ${messageOf(error)}`);
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
  if (manifest?.format !== 1) return `its format is ${manifest?.format}, this version reads 1`;
  for (const [file, expected] of Object.entries(manifest.files)) {
    const full = join(directory, file);
    if (!existsSync(full)) return `${file} is missing`;
    const found = fingerprintFile(full);
    if (found.bytes !== expected.bytes) return `${file} has ${found.bytes} bytes of ${expected.bytes}`;
    if (found.sha256 !== expected.sha256) return `${file} does not match its checksum`;
  }
  return null;
}

function fingerprintFile(path: string): { bytes: number; sha256: string } {
  const hash = createHash("sha256");
  const chunk = Buffer.alloc(1 << 20);
  const file = openSync(path, "r");
  let bytes = 0;
  try {
    for (let read = readSync(file, chunk); read > 0; read = readSync(file, chunk)) {
      hash.update(chunk.subarray(0, read));
      bytes += read;
    }
  } finally {
    closeSync(file);
  }
  return { bytes, sha256: hash.digest("hex") };
}
