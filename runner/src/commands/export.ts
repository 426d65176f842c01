import { join } from "node:path";
import { ExitCode, usageError } from "../errors.ts";
import { exportCheckpoint } from "../loop/export.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { checkRecipe } from "../recipe/check.ts";
import { findRun } from "../telemetry/find-run.ts";
import { readRun } from "../telemetry/log.ts";
import { checkpointOf, trainingVerb } from "./resume.ts";
import { requireAddon } from "./setup.ts";

/** Writes a run's newest checkpoint as a Hugging Face folder; its adapters alone, as one of peft's. */
export async function exportCommand(
  path: string,
  { output, adapter, json }: { output?: string; adapter: boolean; json: boolean },
): Promise<number> {
  const directory = RunDirectory.open(findRun(path, "runs", "checkpoints"));
  try {
    const verb = trainingVerb(directory, readRun(directory.path));
    const { recipe } = await checkRecipe(directory.recipe, { verb, mode: "launch" });
    if (adapter && recipe.actor.lora.rank === 0) {
      const fix = "leave --adapter out: the whole model is exported";
      throw usageError(`run ${directory.runId} has no adapter: its actor.lora.rank is 0`, { fix });
    }
    await requireAddon();
    const checkpoint = await checkpointOf(directory.checkpoints, `run ${directory.runId}`);
    const target = output ?? (adapter ? join(directory.path, "adapter") : directory.export);
    await exportCheckpoint(recipe, checkpoint, target, adapter);
    const { step } = checkpoint.state;
    console.log(json ? JSON.stringify({ step, export: target }) : `step ${step} is exported to ${target}`);
    return ExitCode.done;
  } finally {
    directory.release();
  }
}
