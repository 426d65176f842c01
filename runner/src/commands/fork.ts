import { copyFileSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { usageError } from "../errors.ts";
import { syncPath } from "../files.ts";
import { startDetached } from "../launchers/detached.ts";
import { type Checkpoint, hashOf, saveCheckpoint } from "../loop/checkpoint.ts";
import { checkFits } from "../loop/fits.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { recipeDiff } from "../recipe/diff.ts";
import { loadRecipe } from "../recipe/load.ts";
import { findRun } from "../telemetry/find-run.ts";
import { readRun } from "../telemetry/log.ts";
import type { VerbOptions } from "./options.ts";
import { checkpointOf, trainingVerb } from "./resume.ts";
import { createRun, train } from "./run.ts";
import { requireAddon } from "./setup.ts";

/** Goes on from a step of a run, which may be at work, as a new run with the flags' keys changed. */
export async function forkCommand(
  name: string,
  { json, flags, detach, step }: VerbOptions & { step?: number },
): Promise<number> {
  const parent = RunDirectory.at(findRun(name, "runs", "checkpoints"));
  const verb = trainingVerb(parent, readRun(parent.path));
  const before = loadRecipe(parent.recipe, { verb });
  const checked = await checkRecipe(parent.recipe, { flags, verb, mode: "launch" });
  const { recipe, arithmetic } = checked;
  await requireAddon();
  const source = await checkpointOf(parent.checkpoints, `run ${parent.runId}`, step);
  await checkFits(recipe, source);
  const { step: from } = source.state;
  if (arithmetic.steps !== null && from >= arithmetic.steps) {
    throw usageError(`step ${from} is the end of a run of ${arithmetic.steps} steps`, {
      fix: `--run.steps ${2 * from}, or --step names an earlier checkpoint`,
    });
  }
  if (detach) return startDetached(recipe.run, json);
  const { directory, log, begin: start } = createRun(parent.recipe, verb, checked);
  // Before there is an event: until it has this, it is no run that could be resumed.
  const checkpoint = await copyCheckpoint(source, directory.checkpoints, hashOf(recipe)).catch((error) => {
    rmSync(directory.path, { recursive: true });
    throw error;
  });
  const changed = recipeDiff(before, checked).map(({ key }) => key);
  const begin = () => {
    start();
    log.emit({ type: "forked", from: parent.runId, step: from, changed });
    log.emit({ type: "resumed", fromStep: from, totalSteps: arithmetic.steps });
  };
  const made = { recipe, arithmetic, directory, log, begin };
  return train(made, verb, displayPath(directory.recipe), json, checkpoint);
}

/** Without its finished groups, which other keys may have made: their prompts run again. */
async function copyCheckpoint({ directory, state }: Checkpoint, root: string, recipeHash: string): Promise<Checkpoint> {
  const copied = { ...state, untrained: [], recipeHash };
  const copy = async (aside: string) => {
    for (const shard of readdirSync(directory).filter((name) => name.endsWith(".safetensors"))) {
      copyFileSync(join(directory, shard), join(aside, shard));
      syncPath(join(aside, shard));
    }
  };
  return { directory: await saveCheckpoint(root, copied, copy), state: copied };
}
