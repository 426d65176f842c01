import { ExitCode, usageError } from "../errors.ts";
import { startDetached } from "../launchers/detached.ts";
import { findCheckpoint } from "../loop/checkpoint.ts";
import { conduct } from "../loop/conduct.ts";
import { hasExport } from "../loop/export.ts";
import { checkFits } from "../loop/fits.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { sftFrom } from "../loop/sft-run.ts";
import { trainFrom, trainRun } from "../loop/train-run.ts";
import { checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { findRun } from "../telemetry/find-run.ts";
import { foldRun, type RunState } from "../telemetry/fold.ts";
import { EventLog, readEvents } from "../telemetry/log.ts";
import type { VerbOptions } from "./options.ts";
import { nextCommands } from "./run.ts";
import { requireAddon } from "./setup.ts";

/** Goes on with a run from its newest complete checkpoint; flags may move its end (`--run.steps`). */
export async function resumeCommand(name: string, { json, flags, detach }: VerbOptions): Promise<number> {
  const directory = RunDirectory.open(findRun(name, "runs", "checkpoints"));
  try {
    const run = foldRun(readEvents(directory.events));
    const verb = trainingVerb(directory, run);
    const { recipe, arithmetic } = await checkRecipe(directory.recipe, { flags, verb, mode: "launch" });
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
    if (detach) {
      directory.release();
      return await startDetached(recipe.run, json);
    }
    const log = new EventLog(directory.events);
    const next = nextCommands(directory, verb === "sft" ? null : displayPath(directory.recipe));
    const begin = () => {
      log.emit({ type: "resumed", fromStep, totalSteps });
      for (const message of warnings) log.emit({ type: "warning", message });
    };
    return await conduct({ recipe, directory, log, json, begin, next }, (interrupted) =>
      trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint }, trainersFrom[verb]),
    );
  } finally {
    directory.release();
  }
}

/** What goes on from a checkpoint, by the run's verb. */
export const trainersFrom = { run: trainFrom, sft: sftFrom };

/** That a run trains with, and goes on by. */
export function trainingVerb({ runId }: RunDirectory, { command }: RunState): "run" | "sft" {
  if (command !== "eval") return command === "sft" ? "sft" : "run";
  throw usageError(`run ${runId} was made by eval, which trains nothing and keeps no checkpoint`, {
    fix: "name a run of run or sft; molt-runner runs lists them",
  });
}
