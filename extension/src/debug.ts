import { existsSync } from "node:fs";
import { basename, join } from "node:path";
import { debug, Uri, window, workspace } from "vscode";
import { readRollouts } from "../../runner/src/telemetry/shards.ts";
import { fixed } from "../../runner/src/telemetry/views/lines.ts";
import { rolloutRows } from "../../runner/src/telemetry/views/rollouts.ts";
import { debugConfiguration } from "./debug-configuration.ts";
import { runnerFor } from "./runner.ts";
import type { RunEntry } from "./runs.ts";
import type { Services } from "./services.ts";
import { findRecipes, pickRecipe, type RecipeTarget, recipeTarget, runTarget, textOf } from "./targets.ts";

/** Most rollouts that are offered; the inspector has them all. */
const mostOffered = 200;

/** Runs a recipe under the debugger: breakpoints in its agent stop, on each of its threads. */
export function debugAgent(_: Services) {
  return async (target: RecipeTarget) => {
    const uri = (await recipeOfAgent(target)) ?? (await recipeTarget(target));
    if (uri) await start("run", uri, []);
  };
}

/** The recipe that names the agent in the active editor, or the given one. */
async function recipeOfAgent(target: RecipeTarget): Promise<Uri | undefined> {
  const file = target ?? window.activeTextEditor?.document.uri;
  if (!(file instanceof Uri) || !/\.[cm]?[jt]s$/.test(file.fsPath)) return undefined;
  const recipes = await findRecipes();
  const texts = await Promise.all(recipes.map(textOf));
  return pickRecipe(recipes.filter((_, index) => texts[index]!.includes(basename(file.fsPath))));
}

/** Runs an agent again on what was sampled in a rollout, under the debugger and without an engine. */
export function debugRollout({ runs }: Services) {
  return async (target?: { entry: RunEntry } | { directory: string; rolloutId?: string }) => {
    const isPlace = target && "directory" in target;
    const has = ({ directory }: RunEntry) => existsSync(join(directory, "rollouts"));
    const entry = await runTarget(runs, isPlace ? target.directory : target, "run with rollouts", has);
    const rolloutId = (isPlace && target.rolloutId) || (entry && (await pickRollout(entry)));
    if (entry && rolloutId) await start("replay", Uri.file(entry.directory), ["--", rolloutId]);
  };
}

async function pickRollout({ directory, id }: RunEntry): Promise<string | undefined> {
  const rows: ReturnType<typeof rolloutRows> = [];
  for await (const stored of readRollouts(directory)) {
    rows.push(...rolloutRows(stored).filter(({ turns }) => turns > 0));
    if (rows.length > 2 * mostOffered) rows.splice(0, mostOffered);
  }
  if (rows.length === 0)
    throw new Error(`${id} has stored no rollout: logger.rollout_steps says of which steps it does`);
  const items = rows.reverse().slice(0, mostOffered);
  const labels = items.map(({ rollout, step, reward, stop }) => {
    return { label: rollout, description: `step ${step}, reward ${fixed(reward)}, ${stop}` };
  });
  const options = { placeHolder: "Rollout", matchOnDescription: true, ignoreFocusOut: true };
  return (await window.showQuickPick(labels, options))?.label;
}

async function start(verb: string, uri: Uri, args: string[]): Promise<void> {
  const { command, cwd } = await runnerFor(uri);
  const configuration = debugConfiguration(command, [verb, uri.fsPath, ...args], cwd);
  await debug.startDebugging(workspace.getWorkspaceFolder(uri), configuration);
}
