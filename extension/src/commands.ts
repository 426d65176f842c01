import { commands, type ExtensionContext, type Uri } from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { runRecipe } from "./run.ts";

/** Every command of package.json, and nothing else. */
const table = {
  "moltRunner.runRecipe": (client: LanguageClient) => (uri?: Uri) => runRecipe(client, uri),
};

export function registerCommands(context: ExtensionContext, client: LanguageClient): void {
  for (const [name, handler] of Object.entries(table)) {
    context.subscriptions.push(commands.registerCommand(name, handler(client)));
  }
}
