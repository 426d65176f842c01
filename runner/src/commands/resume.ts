import { ExitCode, usageError } from "../errors.ts";
import { startDetached } from "../launchers/detached.ts";
import { type Checkpoint, findCheckpoint, listCheckpoints } from "../loop/checkpoint.ts";
import { hasExport } from "../loop/export.ts";
import { checkFits } from "../loop/fits.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { findRun } from "../telemetry/find-run.ts";
import type { RunState } from "../telemetry/fold.ts";
import { EventLog, readRun } from "../telemetry/log.ts";
import type { VerbOptions } from "./options.ts";
import { train } from "./run.ts";
import { requireAddon } from "./setup.ts";

/** Goes on with a run from its newest complete checkpoint; flags may move its end (`--run.steps`). */
export async function resumeCommand(name: string, { json, flags, detach }: VerbOptions): Promise<number> {
  const directory = RunDirectory.open(findRun(name, "runs", "checkpoints"));
  try {
    const run = readRun(directory.path);
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
    const begin = () => {
      log.emit({ type: "resumed", fromStep, totalSteps });
      for (const message of warnings) log.emit({ type: "warning", message });
    };
    const made = { recipe, arithmetic, directory, log, begin };
    return await train(made, verb, displayPath(directory.recipe), json, checkpoint);
  } finally {
    directory.release();
  }
}

/** The newest complete one below `root`, or that of a step. `owner`: whose they are, as an error calls it. */
export async function checkpointOf(root: string, owner: string, step?: number): Promise<Checkpoint> {
  const found = await findCheckpoint(root, (message) => console.error(message), step);
  if (found) return found;
  const steps = listCheckpoints(root).map((one) => one.step);
  const which = step === undefined ? "" : ` of step ${step}`;
  throw usageError(`${owner} has no complete checkpoint${which}`, {
    fix: steps.length > 0 ? `it has some of steps ${steps.join(", ")}` : "let it reach ckpt.save_steps",
  });
}

/** That a run trains with, and goes on by. */
export function trainingVerb({ runId }: RunDirectory, { command }: RunState): "run" | "sft" {
  if (command !== "eval") return command === "sft" ? "sft" : "run";
  throw usageError(`run ${runId} was made by eval, which trains nothing and keeps no checkpoint`, {
    fix: "name a run of run or sft; molt-runner runs lists them",
  });
}
