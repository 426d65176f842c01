import { ExitCode } from "../errors.ts";
import { findCheckpoint } from "../loop/checkpoint.ts";
import { conduct } from "../loop/conduct.ts";
import { hasExport } from "../loop/export.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { trainRun } from "../loop/train-run.ts";
import { checkRecipe } from "../recipe/check.ts";
import { foldRun } from "../telemetry/fold.ts";
import { EventLog, readEvents } from "../telemetry/log.ts";
import { requireAddon } from "./setup.ts";

/** Goes on with a run from its newest complete checkpoint; flags may move its end (`--run.steps`). */
export async function resumeCommand(
  path: string,
  { json, flags }: { json: boolean; flags: Record<string, string> },
): Promise<number> {
  const directory = RunDirectory.open(path);
  try {
    const { recipe, arithmetic } = await checkRecipe(directory.recipe, { flags, verb: "run", mode: "launch" });
    await requireAddon();
    const warnings: string[] = [];
    const checkpoint = findCheckpoint(directory.checkpoints, (message) => warnings.push(message));
    const fromStep = checkpoint?.state.step ?? 0;
    const totalSteps = arithmetic.steps;
    const { state } = foldRun(readEvents(directory.events));
    if (state === "completed" && totalSteps !== null && fromStep >= totalSteps && hasExport(directory.export)) {
      const line = `nothing to do: run ${directory.runId} is at step ${fromStep} of ${totalSteps}`;
      console.log(json ? JSON.stringify({ nothing: line, step: fromStep, totalSteps }) : line);
      return ExitCode.nothing;
    }
    const log = new EventLog(directory.events);
    const next = () => [`molt-runner serve --model ${directory.export}`];
    return await conduct({ directory, log, json, next }, (interrupted) => {
      log.emit({ type: "resumed", fromStep, totalSteps });
      for (const message of warnings) log.emit({ type: "warning", message });
      return trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint });
    });
  } finally {
    directory.release();
  }
}
