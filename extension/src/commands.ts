import { commands, type ExtensionContext } from "vscode";
import { runRecipe } from "./run.ts";

/** Every command of package.json, and nothing else. */
const table = {
  "moltRunner.runRecipe": runRecipe,
};

export function registerCommands(context: ExtensionContext): void {
  for (const [name, handler] of Object.entries(table)) {
    context.subscriptions.push(commands.registerCommand(name, handler));
  }
}
