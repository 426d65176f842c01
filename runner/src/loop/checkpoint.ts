import { createHash } from "node:crypto";
import {
  createReadStream,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from "node:fs";
import { join } from "node:path";
import type { PromptQueueState } from "../data/order.ts";
import { pack, unpack } from "../encoding.ts";
import { messageOf, RunnerError, usageError } from "../errors.ts";
import { entriesOf, sha256, syncPath, writeSynced } from "../files.ts";
import type { Recipe } from "../recipe/index.ts";
import type { RunState } from "../telemetry/fold.ts";
import type { BestCheckpoint } from "../telemetry/summary.ts";
import type { LoopProgress } from "./loop.ts";

const format = 2;

export interface LoopState extends LoopProgress {
  updates: number;
  /** Of the KL term, which may have been adapted; older checkpoints lack it. */
  klCoef?: number;
  /** Consumed places, and attempts given back. */
  prompts: PromptQueueState;
  datasetFingerprint: string;
  /** Of the recipe under which it was written. */
  recipeHash: string;
  worldSize: number;
}

export interface Checkpoint {
  directory: string;
  state: LoopState;
}

interface Manifest extends Pick<LoopState, "step" | "recipeHash" | "datasetFingerprint"> {
  /** Of the state, too. */
  format: number;
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
    const files: Manifest["files"] = {};
    for (const file of readdirSync(aside)) files[file] = await fingerprintFile(join(aside, file));
    const { step, recipeHash, datasetFingerprint } = state;
    const manifest: Manifest = { format, step, recipeHash, datasetFingerprint, files };
    writeSynced(join(aside, "manifest.json"), JSON.stringify(manifest, null, 2));
    syncPath(aside);
    // A broken one: a run goes on from its newest complete checkpoint.
    rmSync(final, { recursive: true, force: true });
    renameSync(aside, final);
    syncPath(root);
    return final;
  } catch (error) {
    removePartial(aside); // a full disk needs its room
    throw new RunnerError(`checkpoint ${final} could not be written: ${messageOf(error)}`, {
      fix: "make room on the disk or mend the folder's rights; the checkpoint before stays",
      cause: error,
    });
  }
}

/** Removes what broken-off saves left. Nobody may be saving. */
export function removePartialCheckpoints(root: string): void {
  for (const { name } of entriesOf(root)) if (name.endsWith(partial)) removePartial(join(root, name));
}

function removePartial(aside: string): void {
  try {
    rmSync(aside, { recursive: true, force: true });
  } catch {
    // A failing disk: that broke off the save, which reports it.
  }
}

/** The newest complete one, or that of a step; broken ones are passed over, and named through `onBroken`. */
export async function findCheckpoint(
  root: string,
  onBroken: (message: string) => void,
  step?: number,
): Promise<Checkpoint | null> {
  for (const { name, directory } of listCheckpoints(root, step).reverse()) {
    try {
      await verify(directory);
      return { directory, state: unpack(readFileSync(join(directory, stateFile))) as LoopState };
    } catch (error) {
      if (error instanceof RunnerError) throw error;
      onBroken(`checkpoint ${name} is passed over: ${messageOf(error)}`);
    }
  }
  return null;
}

/** By its eval, of those on the disk. `metric` auto: the loss where evals measure it, else accuracy; null: none. */
export function bestCheckpoint(
  root: string,
  { evals }: Pick<RunState, "evals">,
  metric: string | null,
): BestCheckpoint | null {
  const kept = new Set(listCheckpoints(root).map(({ step }) => step));
  const measured = evals.flatMap(({ step, policyVersion: policy_version, metrics }): BestCheckpoint[] => {
    const name = metric === "auto" ? (metrics.loss === undefined ? "accuracy" : "loss") : (metric ?? "");
    const value = metrics[name] ?? Number.NaN;
    return kept.has(step) && Number.isFinite(value) ? [{ step, policy_version, metric: name, value }] : [];
  });
  const rank = ({ metric, value }: BestCheckpoint) => (/(^|\/)(loss|perplexity)$/.test(metric) ? -value : value);
  return measured.sort((one, other) => rank(one) - rank(other)).at(-1) ?? null;
}

/**
 * After saving `step`, which stays, removes the oldest beyond what is to be kept; what cannot be removed is named, not
 * fatal. That of step `best` stays too. Those above `step`, passed over by a resume, do not count, and stay until a
 * save takes their name.
 */
export function pruneCheckpoints(
  root: string,
  step: number,
  { count, bytes, best }: { count: number; bytes: number; best?: number },
  onProblem: (message: string) => void,
): void {
  const all = listCheckpoints(root).filter((checkpoint) => checkpoint.step <= step);
  let held = 0;
  for (const [index, { directory, name, step: saved }] of all.reverse().entries()) {
    try {
      held += readdirSync(directory).reduce((sum, file) => sum + statSync(join(directory, file)).size, 0);
      if (saved === step || saved === best || (index < count && held <= bytes)) continue;
      rmSync(directory, { recursive: true });
    } catch (error) {
      onProblem(`old checkpoint ${name} stays: ${messageOf(error)}`);
    }
  }
}

export function hashOf(recipe: Recipe): string {
  return sha256(JSON.stringify(recipe));
}

export function listCheckpoints(root: string, step?: number): { name: string; directory: string; step: number }[] {
  return entriesOf(root)
    .flatMap(({ name }) => {
      const match = directoryPattern.exec(name);
      return match ? [{ name, directory: join(root, name), step: Number(match[1]) }] : [];
    })
    .filter((one) => step === undefined || one.step === step)
    .sort((one, other) => one.step - other.step);
}

/** Throws what is wrong with it; a RunnerError at one that is of another version. */
async function verify(directory: string): Promise<void> {
  const path = join(directory, "manifest.json");
  if (!existsSync(path)) throw new Error("it has no manifest");
  const manifest: Manifest = JSON.parse(readFileSync(path, "utf8"));
  if (manifest?.format !== format) {
    const message = `checkpoint ${directory} is of format ${manifest?.format}, this version reads ${format}`;
    throw usageError(message, { fix: "go on with the version that wrote it, or start anew from its exported model" });
  }
  for (const [file, expected] of Object.entries(manifest.files)) {
    const found = await fingerprintFile(join(directory, file));
    if (found.bytes !== expected.bytes) throw new Error(`${file} has ${found.bytes} bytes of ${expected.bytes}`);
    if (found.sha256 !== expected.sha256) throw new Error(`${file} does not match its checksum`);
  }
}

async function fingerprintFile(path: string): Promise<{ bytes: number; sha256: string }> {
  const hash = createHash("sha256");
  let bytes = 0;
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    hash.update(chunk);
    bytes += chunk.length;
  }
  return { bytes, sha256: hash.digest("hex") };
}
