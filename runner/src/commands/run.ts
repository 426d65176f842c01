import { writeFileSync } from "node:fs";
import { conduct } from "../loop/conduct.ts";
import { RunDirectory } from "../loop/run-directory.ts";
import { trainRun } from "../loop/train-run.ts";
import { checkRecipe } from "../recipe/check.ts";
import { resolvedYaml, type Verb } from "../recipe/index.ts";
import { eventVersion } from "../telemetry/events.ts";
import { EventLog } from "../telemetry/log.ts";
import { requireAddon } from "./setup.ts";

interface Options {
  json: boolean;
  flags: Record<string, string>;
}

/** Checks the recipe and opens the run's directory and log. */
export async function openRun(path: string, verb: Verb, { flags }: Options) {
  const { recipe, provenance, arithmetic, problems } = await checkRecipe(path, { flags, verb, mode: "launch" });
  await requireAddon();
  const directory = RunDirectory.create(recipe.run.dir, recipe.run.name);
  writeFileSync(directory.recipe, resolvedYaml(recipe, provenance));
  const log = new EventLog(directory.events);
  const begin = () => {
    const { runId } = directory;
    log.emit({
      type: "started",
      version: eventVersion,
      runId,
      recipe: path,
      command: verb,
      totalSteps: arithmetic.steps,
    });
    log.emit({ type: "arithmetic", line: arithmetic.line });
    for (const { message } of problems) log.emit({ type: "warning", message });
  };
  return { recipe, arithmetic, directory, log, begin };
}

/** Trains by reinforcement learning, from a recipe. */
export async function runCommand(path: string, options: Options): Promise<number> {
  const { recipe, arithmetic, directory, log, begin } = await openRun(path, "run", options);
  const next = () => [
    `molt-runner eval ${path} --actor.model_name_or_path ${directory.export}`,
    `molt-runner serve --model ${directory.export}`,
  ];
  return conduct({ directory, log, json: options.json, next }, (interrupted) => {
    begin();
    return trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint: null });
  });
}
