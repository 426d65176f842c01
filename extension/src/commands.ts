import { commands, type ExtensionContext, Uri } from "vscode";
import type { LanguageClient, Location, Position } from "vscode-languageclient/node";
import { runRecipe } from "./run.ts";

/** Every command of package.json, and those of the language server's lenses. */
const table = {
  "moltRunner.runRecipe": (client: LanguageClient) => (uri?: Uri) => runRecipe(client, uri),
  "molt.run": (client: LanguageClient) => (uri: string) => runRecipe(client, Uri.parse(uri)),
  "molt.plan": (client: LanguageClient) => (uri: string) => runRecipe(client, Uri.parse(uri), "plan"),
  "molt.check": (client: LanguageClient) => (uri: string) => runRecipe(client, Uri.parse(uri), "check"),
  "molt.showReferences": showReferences,
};

/** Opens the editor's own list; a server can only speak of places in the protocol's terms. */
function showReferences({ protocol2CodeConverter: converter }: LanguageClient) {
  return (uri: string, position: Position, locations: Location[]) => {
    const places = locations.map((location) => converter.asLocation(location));
    return commands.executeCommand(
      "editor.action.showReferences",
      Uri.parse(uri),
      converter.asPosition(position),
      places,
    );
  };
}

export function registerCommands(context: ExtensionContext, client: LanguageClient): void {
  for (const [name, handler] of Object.entries(table)) {
    context.subscriptions.push(commands.registerCommand(name, handler(client)));
  }
}
