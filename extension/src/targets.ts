import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { type QuickPickItem, Uri, window, workspace } from "vscode";
import { readRow, runLabel } from "./run-rows.ts";
import type { RunEntry, Runs } from "./runs.ts";

/** What a command is told of a recipe: by a lens, a menu, a tree; nothing by the palette. */
export type RecipeTarget = string | Uri | { uri: Uri } | undefined;
/** Of a run: its directory, or a tree's element. */
export type RunTarget = string | { entry: RunEntry } | undefined;

export const directoryOf = (target: RunTarget) => (typeof target === "string" ? target : target?.entry.directory);

/** The recipe that is meant: the one given, the one in the active editor, else one that is picked. */
export async function recipeTarget(target: RecipeTarget): Promise<Uri | undefined> {
  if (typeof target === "string") return Uri.parse(target);
  if (target instanceof Uri) return target;
  if (target) return target.uri;
  const { isRecipe } = await import("../../lsp/src/service/documents.ts");
  const active = window.activeTextEditor?.document;
  if (active?.uri.scheme === "file" && isRecipe(active.uri.fsPath, active.getText())) return active.uri;
  const recipes = await findRecipes();
  if (recipes.length === 0) throw new Error("no recipe is here: Molt Runner: New Agent writes one with its agent");
  return pickRecipe(recipes);
}

/** Undefined where there is none, or none is picked. */
export async function pickRecipe(recipes: Uri[], placeHolder = "Recipe"): Promise<Uri | undefined> {
  if (recipes.length < 2) return recipes[0];
  const items = recipes.map((uri) => ({ label: workspace.asRelativePath(uri), uri }));
  return (await window.showQuickPick(items, { placeHolder }))?.uri;
}

/** Recipes of the workspace by path, without the copies that runs hold. */
export async function findRecipes(): Promise<Uri[]> {
  const files = await workspace.findFiles("**/*.{yaml,yml}", "**/{node_modules,.git}/**", 5000);
  const own = files.filter(({ fsPath }) => !existsSync(join(dirname(fsPath), "events.ndjson")));
  const { isRecipe } = await import("../../lsp/src/service/documents.ts");
  const found = await Promise.all(own.map(async (uri) => (isRecipe(uri.fsPath, await textOf(uri)) ? [uri] : [])));
  return found.flat().sort((one, other) => (one.fsPath < other.fsPath ? -1 : 1));
}

export async function textOf(uri: Uri): Promise<string> {
  try {
    return Buffer.from(await workspace.fs.readFile(uri)).toString("utf8");
  } catch {
    return ""; // It went meanwhile.
  }
}

/** The run that is meant: the one given, the only one that fits, else one that is picked. */
export async function runTarget(
  runs: Runs,
  target: RunTarget,
  what = "run",
  fits: (entry: RunEntry) => boolean = () => true,
): Promise<RunEntry | undefined> {
  // One may have begun since the folders were last looked at.
  await runs.refresh();
  const { entries } = runs;
  const directory = directoryOf(target);
  const given = entries.find((entry) => entry.directory === directory);
  if (given) return given;
  if (directory !== undefined) throw new Error(`${directory} is no run of this workspace any more`);
  const fitting = entries.filter(fits);
  if (fitting.length === 0) throw new Error(`no ${what} is here`);
  if (fitting.length === 1) return fitting[0];
  const rows = await Promise.all(fitting.map(({ directory, live }) => readRow(directory, live)));
  const items = fitting.map((entry, index) => ({ label: entry.id, description: runLabel(rows[index]!), entry }));
  return (await window.showQuickPick<QuickPickItem & { entry: RunEntry }>(items, { placeHolder: what }))?.entry;
}
