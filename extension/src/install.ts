import { commands, ShellExecution, Task, type Uri, window, workspace } from "vscode";
import { ended } from "./tasks.ts";

/** Asks, then installs the runner with npm in the file's folder of the workspace. True once it is there. */
export async function offerInstall(uri: Uri): Promise<boolean> {
  const folder = workspace.getWorkspaceFolder(uri);
  const message = "Molt Runner: molt-runner is not installed here, nor above, and molt.runnerPath names none.";
  const [install, choose] = ["Install with npm", "Set molt.runnerPath"];
  const answer = await window.showWarningMessage(message, ...(folder ? [install, choose] : [choose]));
  if (answer === choose) await commands.executeCommand("workbench.action.openSettings", "molt.runnerPath");
  if (answer !== install || !folder) return false;
  const execution = new ShellExecution("npm", ["install", "--save-dev", "molt-runner"], { cwd: folder.uri.fsPath });
  const task = new Task({ type: "shell" }, folder, "install", "Molt Runner", execution);
  return (await ended(task, 600)) === 0;
}
