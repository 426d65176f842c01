import { ExitCode, usageError } from "../errors.ts";
import { findCheckpoint } from "../loop/checkpoint.ts";
import { conduct } from "../loop/conduct.ts";
import { hasExport } from "../loop/export.ts";
import { checkFits } from "../loop/fits.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { trainRun } from "../loop/train-run.ts";
import { checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { findRun } from "../telemetry/find-run.ts";
import { foldRun, type RunState } from "../telemetry/fold.ts";
import { EventLog, readEvents } from "../telemetry/log.ts";
import type { VerbOptions } from "./options.ts";
import { nextCommands } from "./run.ts";
import { requireAddon } from "./setup.ts";

/** Goes on with a run from its newest complete checkpoint; flags may move its end (`--run.steps`). */
export async function resumeCommand(name: string, { json, flags }: VerbOptions): Promise<number> {
  const directory = RunDirectory.open(findRun(name));
  try {
    const run = foldRun(readEvents(directory.events));
    refuseSft(directory, run);
    const { recipe, arithmetic } = await checkRecipe(directory.recipe, { flags, verb: "run", mode: "launch" });
    await requireAddon();
    const warnings: string[] = [];
    const checkpoint = await findCheckpoint(directory.checkpoints, (message) => warnings.push(message));
    const fromStep = checkpoint?.state.step ?? 0;
    const totalSteps = arithmetic.steps;
    const isWhole = run.state === "completed" && hasExport(directory.export);
    if (totalSteps !== null && (fromStep > totalSteps || (fromStep === totalSteps && isWhole))) {
      const line = `nothing to do: run ${directory.runId} is at step ${fromStep} of ${totalSteps}`;
      console.log(json ? JSON.stringify({ nothing: line, step: fromStep, totalSteps }) : line);
      return ExitCode.nothing;
    }
    if (checkpoint) await checkFits(recipe, checkpoint);
    const log = new EventLog(directory.events);
    const next = nextCommands(directory, displayPath(directory.recipe));
    return await conduct({ recipe, directory, log, json, next }, (interrupted) => {
      log.emit({ type: "resumed", fromStep, totalSteps });
      for (const message of warnings) log.emit({ type: "warning", message });
      return trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint });
    });
  } finally {
    directory.release();
  }
}

/** Supervised training is short and keeps no checkpoint. */
export function refuseSft({ runId, recipe }: RunDirectory, { command }: RunState): void {
  if (command !== "sft") return;
  throw usageError(`run ${runId} was made by sft, which keeps no checkpoint`, {
    fix: `its model is in export/ once it has ended; start it again with: npx molt-runner sft ${displayPath(recipe)}`,
  });
}
