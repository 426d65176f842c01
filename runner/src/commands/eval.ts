import { existsSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { inFolder } from "../agents/subprocess.ts";
import { ExitCode, usageError } from "../errors.ts";
import { openCluster } from "../launchers/index.ts";
import { evaluate } from "../loop/evaluate.ts";
import { exportCheckpoint } from "../loop/export.ts";
import { evalProfiles, readEvalRows, startSampling, stopSampling } from "../loop/parts.ts";
import { type CheckedRecipe, checkRecipe } from "../recipe/check.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { findRun } from "../telemetry/find-run.ts";
import { readRun } from "../telemetry/log.ts";
import { RolloutStore } from "../telemetry/shards.ts";
import { writeSummary } from "../telemetry/summary.ts";
import { fixed, table } from "../telemetry/views/lines.ts";
import { readPolicyFolder } from "../trainer/specs.ts";
import type { VerbOptions } from "./options.ts";
import { checkpointOf } from "./resume.ts";
import { createRun } from "./run.ts";
import { requireAddon } from "./setup.ts";

/** What is evaluated, by which recipe. */
interface Target {
  recipe: string;
  /** An exported folder or a checkpoint, in place of the recipe's model. */
  model?: string;
  /** Below which its checkpoints lie. */
  checkpoints?: string;
  /** Of the checkpoint; the newest without. */
  step?: number;
  /** What the model is of, where it is known. */
  at?: { step: number; policyVersion: number };
}

/**
 * Evaluates a recipe's model, a run's checkpoint or an exported model on the held-out rows, as a run of its own:
 * events, summary and rollouts are kept. Trains nothing.
 */
export async function evalCommand(name: string, { json, flags }: VerbOptions): Promise<number> {
  const target = targetOf(name);
  const given = target.model === undefined ? flags : { "actor.model_name_or_path": target.model, ...flags };
  const checked = await checkRecipe(target.recipe, { flags: given, verb: "eval", mode: "launch" });
  await requireAddon();
  if (target.checkpoints === undefined) return evaluateModel(target, checked, json);
  const checkpoint = await checkpointOf(target.checkpoints, name, target.step);
  return inFolder(join(tmpdir(), "molt-eval-"), async (folder) => {
    const model = join(folder, basename(checkpoint.directory));
    await exportCheckpoint(checked.recipe, checkpoint, model);
    Object.assign(checked.recipe.actor, { model_name_or_path: model, init: "weights" });
    return evaluateModel({ ...target, model: checkpoint.directory, at: checkpoint.state }, checked, json);
  });
}

/** A recipe's file, a folder with a model, a checkpoint's folder, or a run. */
function targetOf(name: string): Target {
  if (statSync(name, { throwIfNoEntry: false })?.isFile() || /\.ya?ml$/.test(name)) return { recipe: name };
  const path = resolve(name);
  if (existsSync(join(path, "config.json"))) {
    const recipe = join(dirname(path), "recipe.yaml");
    const fix = `name the recipe: molt-runner eval RECIPE --actor.model_name_or_path ${name}`;
    if (!existsSync(recipe)) throw usageError(`${name} is a model's folder, with no run's recipe beside it`, { fix });
    return { recipe, model: path, at: readRun(dirname(path)) };
  }
  const [, holder, step] = /^(.+)[/\\]checkpoints[/\\]step-(\d+)$/.exec(path) ?? [];
  const run = holder ?? findRun(name, "runs", "checkpoints");
  return {
    recipe: join(run, "recipe.yaml"),
    checkpoints: join(run, "checkpoints"),
    step: step ? Number(step) : undefined,
  };
}

async function evaluateModel(
  { recipe: path, model, at: { step, policyVersion } = { step: 0, policyVersion: 0 } }: Target,
  checked: CheckedRecipe,
  json: boolean,
): Promise<number> {
  const { recipe } = checked;
  // Nothing trains: all evaluate.
  recipe.eval.engines = 0;
  recipe.run.name = recipe.run.name.replace(/(-?eval)?$/, "-eval").replace(/^-/, "");
  const folder = readPolicyFolder(recipe);
  const rows = (await readEvalRows(recipe))!;
  const { directory, log, begin } = createRun(path, "eval", checked);
  const store = new RolloutStore(directory.path, (message) => log.emit({ type: "warning", message }));
  const interrupt = new AbortController();
  process.once("SIGINT", () => interrupt.abort()).once("SIGTERM", () => interrupt.abort());
  const cluster = await openCluster(recipe, directory.runId, log, "eval");
  let state: "completed" | "failed" | "interrupted" = "failed";
  try {
    begin();
    await cluster.ready(interrupt.signal);
    const emit = (event: RunEvent) => {
      if ("message" in event && event.message) console.error(event.message);
    };
    const sampling = await startSampling(recipe, folder, directory.runId, recipe.actor.init, emit, cluster, "eval");
    const task = { rows, profiles: evalProfiles(recipe), passK: recipe.eval.pass_k, evalId: "eval", policyVersion };
    const work = evaluate(task, sampling.agents, interrupt.signal);
    const result = await Promise.race([work, sampling.fleet.died]).finally(() => stopSampling(sampling));
    state = interrupt.signal.aborted ? "interrupted" : "completed";
    if (state === "interrupted") return ExitCode.interrupted;
    const { metrics, sources, groups } = result;
    log.emit({ type: "eval", step, policyVersion, metrics });
    await store.addEval(step, groups);
    const shown = displayPath(model ?? folder.path);
    const said = { model: shown, step, policy_version: policyVersion, run: directory.path };
    const line = `${shown}, version ${policyVersion}; its rollouts are in ${displayPath(directory.path)}`;
    console.log(json ? JSON.stringify({ ...said, metrics }) : `${evalTable(metrics, sources)}\n${line}`);
    return ExitCode.done;
  } finally {
    await cluster.close();
    log.emit({ type: "ended", state });
    writeSummary(directory.path, log.run);
    directory.release();
  }
}

/** A metric a line; all rows, then each data source. */
function evalTable(metrics: Record<string, number>, sources: string[]): string {
  const names = Object.keys(metrics).filter((name) => !sources.some((source) => name.startsWith(`${source}/`)));
  const shown = (value?: number) => (Number.isInteger(value) ? String(value) : fixed(value));
  const rows = names.map((name) => [name, name, ...sources.map((source) => `${source}/${name}`)]);
  const cells = rows.map(([name, ...keys]) => [name!, ...keys.map((key) => shown(metrics[key]))]);
  return table([["", "all", ...sources], ...cells]);
}
