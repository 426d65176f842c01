import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import {
  ShellExecution,
  ShellQuoting,
  Task,
  TaskPanelKind,
  TaskScope,
  tasks,
  type Uri,
  window,
  workspace,
} from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import type { Verb } from "../../runner/src/recipe/index.ts";
import { verbOf } from "./client.ts";

type TaskVerb = Verb | "plan" | "check";

/**
 * Starts `molt-runner <verb> <file>` in a terminal for the recipe given by a menu or a lens, or shown in the active
 * editor. Without a verb: the one that the recipe is made for.
 */
export async function runRecipe(
  client: LanguageClient,
  uri = window.activeTextEditor?.document.uri,
  verb?: TaskVerb,
): Promise<void> {
  if (uri?.scheme !== "file") {
    window.showErrorMessage("Molt Runner: open a recipe (a YAML file on disk) to run it.");
    return;
  }
  const document = workspace.textDocuments.find((open) => open.uri.toString() === uri.toString());
  if (document?.isDirty && !(await document.save())) return;
  await tasks.executeTask(createTask(uri, verb ?? (await verbOf(client, uri))));
}

/** A task, because it quotes each word for whatever shell the terminal has. */
function createTask(uri: Uri, verb: TaskVerb): Task {
  const folder = workspace.getWorkspaceFolder(uri);
  const cwd = folder?.uri.fsPath ?? dirname(uri.fsPath);
  const file = workspace.asRelativePath(uri, false);
  const [command, ...words] = [...runnerCommand(uri, cwd), verb, file];
  const execution = new ShellExecution(command!, words.map(quoted), { cwd });
  const scope = folder ?? TaskScope.Workspace;
  const task = new Task({ type: "molt-runner", file }, scope, `${verb} ${file}`, "Molt Runner", execution);
  task.presentationOptions = { panel: TaskPanelKind.Dedicated, clear: true };
  return task;
}

function quoted(value: string) {
  return { value, quoting: ShellQuoting.Strong };
}

/** The setting, else the runner installed in the workspace or above it (this repository's own too), else npx's. */
function runnerCommand(uri: Uri, cwd: string): string[] {
  const setting = workspace.getConfiguration("moltRunner", uri).get<string[]>("command", []);
  if (setting.length > 0) return setting;
  for (let folder = cwd; folder !== dirname(folder); folder = dirname(folder)) {
    const installed = join(folder, "node_modules", "molt-runner", "dist", "cli.js");
    if (existsSync(installed)) return ["node", installed];
  }
  return ["npx", "molt-runner"];
}
