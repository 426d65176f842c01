import { type ExtensionContext, StatusBarAlignment, type Uri, window } from "vscode";
import { LanguageClient, State, TransportKind } from "vscode-languageclient/node";
import { type RecipeParams, type ResolveResult, resolveRequest } from "../../lsp/src/requests.ts";
import { withDeadline } from "../../runner/src/deadline.ts";
import type { Verb } from "../../runner/src/recipe/index.ts";

const stateText: Record<State, string> = {
  [State.Starting]: "starting",
  [State.Running]: "ready",
  [State.Stopped]: "stopped",
  [State.StartFailed]: "failed",
};

/** The bundled language server's client, not yet started; the status bar shows its state. Ends with the extension. */
export function createClient(context: ExtensionContext): LanguageClient {
  const status = window.createStatusBarItem("status", StatusBarAlignment.Right);
  status.name = "Molt Runner";
  status.tooltip = "Molt Runner: the recipes' language server";

  // `module`, not a command: VS Code starts it under its own Node, and none has to be installed.
  const server = { module: context.asAbsolutePath("dist/server.cjs"), transport: TransportKind.stdio };
  const client = new LanguageClient("moltRunner", "Molt Runner", server, {
    documentSelector: ["yaml", "typescript", "javascript"].map((language) => ({ scheme: "file", language })),
  });
  const show = (state: State) => {
    status.text = `Molt: ${stateText[state]}`;
    status.show();
  };
  show(State.Starting);
  context.subscriptions.push(
    status,
    client,
    client.onDidChangeState(({ newState }) => show(newState)),
  );
  return client;
}

/** The verb that the server takes the recipe for; `run` when it is down. */
export async function verbOf(client: LanguageClient, uri: Uri): Promise<Verb> {
  if (client.state !== State.Running) return "run";
  const params: RecipeParams = { uri: uri.toString() };
  try {
    const answer = client.sendRequest<ResolveResult>(resolveRequest, params);
    return (await withDeadline(answer, 5, "the language server"))?.verb ?? "run";
  } catch {
    return "run";
  }
}
