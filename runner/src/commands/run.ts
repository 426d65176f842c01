import { replaceFile } from "../files.ts";
import { startDetached } from "../launchers/detached.ts";
import type { Checkpoint } from "../loop/checkpoint.ts";
import { conduct } from "../loop/conduct.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { sftFrom } from "../loop/sft-run.ts";
import { trainFrom, trainRun } from "../loop/train-run.ts";
import { type CheckedRecipe, checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { resolvedYaml, type Verb } from "../recipe/index.ts";
import { eventVersion } from "../telemetry/events.ts";
import { EventLog } from "../telemetry/log.ts";
import type { RunSummary } from "../telemetry/summary.ts";
import type { VerbOptions } from "./options.ts";
import { requireAddon } from "./setup.ts";

export function createRun(path: string, verb: Verb, { recipe, provenance, arithmetic, problems }: CheckedRecipe) {
  const directory = RunDirectory.create(recipe.run.dir, recipe.run.name);
  replaceFile(directory.recipe, resolvedYaml(recipe, provenance));
  const log = new EventLog(directory.events);
  const { steps: totalSteps, line } = arithmetic;
  const begin = () => {
    const { runId } = directory;
    log.emit({ type: "started", version: eventVersion, runId, recipe: path, command: verb, totalSteps });
    log.emit({ type: "arithmetic", line });
    for (const { message } of problems) log.emit({ type: "warning", message });
  };
  return { recipe, arithmetic, directory, log, begin };
}

/** What goes on from a checkpoint, by the run's verb. */
const trainersFrom = { run: trainFrom, sft: sftFrom };

/** Trains by reinforcement learning, from a recipe. */
export const runCommand = (path: string, options: VerbOptions) => trainNew(path, "run", options);

/** A run from a recipe, from its check to its end. */
export async function trainNew(path: string, verb: "run" | "sft", { flags, json, detach }: VerbOptions) {
  const checked = await checkRecipe(path, { flags, verb, mode: "launch" });
  await requireAddon();
  return detach ? startDetached(checked.recipe.run, json) : train(createRun(path, verb, checked), verb, path, json);
}

/** A run to its end, from a checkpoint where there is one. `path`: of the recipe, as the user names it. */
export function train(
  { recipe, arithmetic, directory, log, begin }: ReturnType<typeof createRun>,
  verb: "run" | "sft",
  path: string,
  json: boolean,
  checkpoint: Checkpoint | null = null,
): Promise<number> {
  const next = nextCommands(directory, verb === "run" ? path : null);
  return conduct({ recipe, directory, log, json, begin, next }, (interrupted) =>
    trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint }, trainersFrom[verb]),
  );
}

/** What is worth trying once a run has ended; `recipe`: the file, as the user names it, that may be evaluated. */
function nextCommands(directory: RunDirectory, recipe: string | null): (summary: RunSummary) => string[] {
  const model = displayPath(directory.export);
  return ({ state }) => {
    if (state !== "completed") return [`npx molt-runner resume ${displayPath(directory.path)}`];
    const serve = `npx molt-runner serve --model ${model}`;
    return recipe === null ? [serve] : [`npx molt-runner eval ${recipe} --actor.model_name_or_path ${model}`, serve];
  };
}
