import * as vscode from "vscode";
import { withDeadline } from "../../runner/src/deadline.ts";
import { type Runner, runnerFor } from "./runner.ts";
import { findRecipes } from "./targets.ts";

type Folder = vscode.WorkspaceFolder;

/** An entry of `tasks.json`: `{ "type": "molt-runner", "verb": "run", "target": "recipes/sort.yaml" }`. */
export interface MoltTask extends vscode.TaskDefinition {
  verb: string;
  /** A recipe or a run; taken from the workspace's folder. */
  target: string;
  /** Flags. */
  args?: string[];
}

/** Starts a verb on a recipe or a run in a terminal of its own. */
export async function runTask(verb: string, uri: vscode.Uri, args: string[] = []): Promise<void> {
  const folder = vscode.workspace.getWorkspaceFolder(uri);
  const target = folder ? vscode.workspace.asRelativePath(uri, false) : uri.fsPath;
  const definition: MoltTask = { type: "molt-runner", verb, target, args };
  await vscode.tasks.executeTask(createTask(definition, folder, await runnerFor(uri)));
}

/** A shell's, because that quotes each word for whatever shell the terminal has. */
export function createTask(definition: MoltTask, folder: Folder | undefined, runner: Runner): vscode.Task {
  const { verb, target, args = [] } = definition;
  const [program, ...words] = [...runner.command, verb, target, ...args];
  const quoted = words.map((value) => ({ value, quoting: vscode.ShellQuoting.Strong }));
  const execution = new vscode.ShellExecution(program!, quoted, { cwd: runner.cwd });
  const name = [verb, target, ...args].join(" ");
  const scope = folder ?? vscode.TaskScope.Workspace;
  const task = new vscode.Task(definition, scope, name, "Molt Runner", execution, folder ? "$molt-runner" : []);
  task.presentationOptions = { panel: vscode.TaskPanelKind.Dedicated, clear: true };
  return task;
}

/** What `Run Task` offers, and what makes a task of an entry in `tasks.json`. */
export function registerTasks(): vscode.Disposable {
  const taskOf = async (definition: MoltTask, folder: Folder) => {
    const runner = await runnerFor(vscode.Uri.joinPath(folder.uri, definition.target)).catch(() => null);
    return runner ? [createTask(definition, folder, runner)] : [];
  };
  return vscode.tasks.registerTaskProvider("molt-runner", {
    async provideTasks() {
      const offered = (await findRecipes()).flatMap((uri) => {
        const folder = vscode.workspace.getWorkspaceFolder(uri)!;
        const target = vscode.workspace.asRelativePath(uri, false);
        return ["run", "check"].map((verb) => taskOf({ type: "molt-runner", verb, target }, folder));
      });
      return (await Promise.all(offered)).flat();
    },
    async resolveTask({ definition, scope }) {
      const folder = typeof scope === "object" ? scope : vscode.workspace.workspaceFolders?.[0];
      return folder && (await taskOf(definition as MoltTask, folder))[0];
    },
  });
}

/** Resolves with the exit code of a task's process, once it ends. */
export async function ended(task: vscode.Task, seconds: number): Promise<number | undefined> {
  const execution = await vscode.tasks.executeTask(task);
  let listening: vscode.Disposable | undefined;
  const code = new Promise<number | undefined>((resolve) => {
    listening = vscode.tasks.onDidEndTaskProcess((event) => event.execution === execution && resolve(event.exitCode));
  });
  return withDeadline(code, seconds, `the task '${task.name}'`).finally(() => listening?.dispose());
}
