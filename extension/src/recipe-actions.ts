import { existsSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { env, type QuickPickItem, Uri, type WorkspaceFolder, window, workspace } from "vscode";
import * as requests from "../../lsp/src/requests.ts";
import { inlineYaml } from "../../runner/src/recipe/resolved-yaml.ts";
import { recipeKeys } from "../../runner/src/recipe/schema.ts";
import { ask, verbOf } from "./client.ts";
import { notice, showText } from "./documents.ts";
import { runnerFor, verbText } from "./runner.ts";
import type { Services } from "./services.ts";
import { findRecipes, pickRecipe, type RecipeTarget, recipeTarget } from "./targets.ts";
import { runTask } from "./tasks.ts";

/** Not one that a command line takes for a flag. */
const fileName = /^\w[\w.-]*$/;

/** A verb on a recipe, in a terminal; null: the one that the recipe is made for. Unsaved text is saved first. */
export function onRecipe(verb: string | null) {
  return ({ server }: Services) =>
    async (target: RecipeTarget) => {
      const uri = await recipeTarget(target);
      if (uri && (await isSaved(uri))) await runTask(verb ?? (await verbOf(server, uri)), uri);
    };
}

async function isSaved(uri: Uri): Promise<boolean> {
  const document = workspace.textDocuments.find((open) => open.uri.toString() === uri.toString());
  return !document?.isDirty || document.save();
}

/** A recipe that extends another and differs in what is written below; where there is none, an agent with its own. */
export function newRecipe(services: Services) {
  return async () => {
    const recipes = await findRecipes();
    if (recipes.length === 0) return newAgent(services)();
    const parent = await pickRecipe(recipes, "Recipe that the new one extends");
    const name = parent && (await askName("the recipe", fileName))?.replace(/\.ya?ml$/, "");
    if (!name) return;
    const file = join(dirname(parent.fsPath), `${name}.yaml`);
    if (existsSync(file)) throw new Error(`${workspace.asRelativePath(file)} is there already`);
    writeFileSync(
      file,
      `# molt-runner\nextends: ${inlineYaml(basename(parent.fsPath))}\nrun:\n  name: ${inlineYaml(name)}\n`,
    );
    await window.showTextDocument(Uri.file(file));
  };
}

/** A folder with an agent, its recipe, test and data, as `init` writes it. */
export function newAgent(_: Services) {
  return async () => {
    const folder = await pickFolder();
    const name = folder && (await askName("the agent's folder", fileName));
    if (!name) return;
    await verbText(await runnerFor(folder.uri), ["init", name]);
    for (const file of ["recipe.yaml", "agent.ts"]) {
      await window.showTextDocument(Uri.joinPath(folder.uri, name, file), { preview: false });
    }
  };
}

/** An estimator with its test, named in the recipe beside it, as `init estimator` writes it. */
export function newEstimator(_: Services) {
  return async () => {
    const recipes = (await findRecipes()).filter(({ fsPath }) => basename(fsPath) === "recipe.yaml");
    const recipe = await pickRecipe(recipes, "Recipe that names it");
    if (recipes.length > 1 && !recipe) return;
    const folder = recipe ? Uri.joinPath(recipe, "..") : (await pickFolder())?.uri;
    const name = await askName("the estimator", /^[a-z][a-z0-9_]*$/);
    if (!name || !folder) return;
    const runner = { ...(await runnerFor(folder)), cwd: folder.fsPath };
    const [file] = (await verbText(runner, ["init", "estimator", name])).split("\n");
    await window.showTextDocument(Uri.file(resolve(folder.fsPath, file!)));
  };
}

function askName(what: string, pattern: RegExp): Thenable<string | undefined> {
  const validateInput = (text: string) => (pattern.test(text) ? null : `It must match ${pattern.source}`);
  return window.showInputBox({ prompt: `Name of ${what}`, validateInput });
}

async function pickFolder(): Promise<WorkspaceFolder | undefined> {
  const folders = workspace.workspaceFolders ?? [];
  if (folders.length === 0) throw new Error("open a folder first: this writes files");
  return folders.length === 1 ? folders[0] : window.showWorkspaceFolderPick();
}

/** One key of a recipe: value, where that comes from, guardrails, who reads it. */
export function explainKey({ server }: Services) {
  return async (target: RecipeTarget) => {
    const uri = await recipeTarget(target);
    if (!uri) return;
    const items = [...recipeKeys.values()].map(({ key, description }) => ({ label: key, detail: description }));
    const key = (await window.showQuickPick(items, { placeHolder: "Key", matchOnDetail: true }))?.label;
    if (!key) return;
    const params: requests.ExplainParams = { uri: uri.toString(), key };
    const answer = await ask<requests.ExplainResult>(server, requests.explainRequest, params);
    const spoken = () => verbOutput(uri, ["check", uri.fsPath, "--explain", key]);
    await showText(`${key}.md`, answer?.text ?? (await spoken()));
  };
}

const verbOutput = async (uri: Uri, args: string[]) => verbText(await runnerFor(uri), args);

/** Source of the rooms that are picked, within a budget of tokens, to the clipboard. */
export function copyContext({ server }: Services) {
  return async () => {
    const map = await ask<requests.CodeMapResult>(server, requests.codeMapRequest, {});
    const items: QuickPickItem[] = (map?.rooms ?? []).map(({ room, summary, tokens }) => {
      return { label: room, description: `${tokens} tokens`, detail: summary };
    });
    const placeHolder = "Rooms to copy; none is all, within the budget";
    const picked = map ? await window.showQuickPick(items, { canPickMany: true, placeHolder }) : [];
    if (!picked) return;
    const params: requests.ContextParams = { rooms: picked.map(({ label }) => label), budget: 20_000 };
    const answer = await ask<requests.ContextResult>(server, requests.contextRequest, params);
    const folder = answer ? undefined : await pickFolder();
    const text = answer?.text ?? (folder && (await verbOutput(folder.uri, ["context"])));
    if (!text) return;
    await env.clipboard.writeText(text);
    const what = answer ? `${answer.tokens} tokens of ${answer.files.length} files` : "the code's context";
    window.showInformationMessage(notice(`copied ${what}`));
  };
}
