import { ExitCode, usageError } from "../errors.ts";
import { findCheckpoint } from "../loop/checkpoint.ts";
import { exportModel } from "../loop/export.ts";
import { startRanks } from "../loop/parts.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { checkRecipe } from "../recipe/check.ts";
import { findRun } from "../telemetry/find-run.ts";
import { foldRun } from "../telemetry/fold.ts";
import { readEvents } from "../telemetry/log.ts";
import { readPolicyFolder } from "../trainer/specs.ts";
import { refuseSft } from "./resume.ts";
import { requireAddon } from "./setup.ts";

/** Writes a run's newest checkpoint as a Hugging Face folder. */
export async function exportCommand(
  path: string,
  { output, json }: { output?: string; json: boolean },
): Promise<number> {
  const directory = RunDirectory.open(findRun(path));
  try {
    refuseSft(directory, foldRun(readEvents(directory.events)));
    const { recipe } = await checkRecipe(directory.recipe, { verb: "run", mode: "launch" });
    await requireAddon();
    const checkpoint = await findCheckpoint(directory.checkpoints, (message) => console.error(message));
    if (!checkpoint) {
      throw usageError(`run ${directory.runId} has no complete checkpoint`, { fix: "let it reach ckpt.save_steps" });
    }
    const folder = readPolicyFolder(recipe);
    const ranks = await startRanks(recipe, folder, checkpoint.state.worldSize);
    const target = output ?? directory.export;
    try {
      await ranks.all("loadCheckpoint", { directory: checkpoint.directory });
      await exportModel(ranks, folder.path, target);
    } finally {
      await ranks.stop();
    }
    const { step } = checkpoint.state;
    console.log(json ? JSON.stringify({ step, export: target }) : `step ${step} is exported to ${target}`);
    return ExitCode.done;
  } finally {
    directory.release();
  }
}
