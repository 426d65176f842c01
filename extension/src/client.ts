import { type ExtensionContext, StatusBarAlignment, window } from "vscode";
import { LanguageClient, State, TransportKind } from "vscode-languageclient/node";

const stateText: Record<State, string> = {
  [State.Starting]: "starting",
  [State.Running]: "ready",
  [State.Stopped]: "stopped",
  [State.StartFailed]: "failed",
};

/** Starts the bundled language server, and shows its state in the status bar. Both end with the extension. */
export async function startClient(context: ExtensionContext): Promise<void> {
  const status = window.createStatusBarItem("status", StatusBarAlignment.Right);
  status.name = "Molt Runner";
  status.tooltip = "Molt Runner: the recipes' language server";

  // `module`, not a command: VS Code starts it under its own Node, and none has to be installed.
  const server = { module: context.asAbsolutePath("dist/server.cjs"), transport: TransportKind.stdio };
  const client = new LanguageClient("moltRunner", "Molt Runner", server, {
    documentSelector: [{ scheme: "file", language: "yaml" }],
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
  await client.start();
}
