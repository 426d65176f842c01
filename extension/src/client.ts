import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { type RecipeParams, type ResolveResult, resolveRequest } from "../../lsp/src/requests.ts";
import { withDeadline } from "../../runner/src/deadline.ts";
import type { Verb } from "../../runner/src/recipe/index.ts";
import type { Services } from "./services.ts";

/** The bundled language server, whose client is loaded once there is a recipe; the status bar shows its state. */
export class Server implements vscode.Disposable {
  private readonly status = vscode.window.createStatusBarItem("status", vscode.StatusBarAlignment.Right);
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChange = this.changed.event;
  private begun: Promise<void> | undefined;
  private made: LanguageClient | undefined;
  private state = "";
  private notes: string[] = [];

  constructor() {
    this.status.name = "Molt Runner";
    this.status.command = "molt.doctor";
  }

  /** Null while it is down. */
  get client(): LanguageClient | null {
    return this.made?.isRunning() ? this.made : null;
  }

  /** Once. */
  start(services: Services): void {
    this.begun ??= this.begin(services).catch((error) => services.log.error(error));
  }

  /** What the user should know whenever they look at the server's state. */
  note(lines: string[]): void {
    this.notes = lines;
    this.show(this.state);
  }

  dispose(): void {
    this.status.dispose();
    this.changed.dispose();
    this.made?.dispose().catch(() => {}); // ended already
  }

  private async begin({ context, log }: Services): Promise<void> {
    this.show("starting");
    const { LanguageClient, State, TransportKind } = await import("vscode-languageclient/node");
    // `module`, not a command: VS Code starts it under its own Node, and none has to be installed.
    const server = { module: context.asAbsolutePath("dist/server.cjs"), transport: TransportKind.stdio };
    this.made = new LanguageClient("moltRunner", "Molt Runner", server, {
      documentSelector: ["yaml", "typescript", "javascript"].map((language) => ({ scheme: "file", language })),
      outputChannel: log,
    });
    const texts = {
      [State.Starting]: "starting",
      [State.Running]: "ready",
      [State.Stopped]: "stopped",
      [State.StartFailed]: "failed",
    };
    this.made.onDidChangeState(({ newState }) => {
      this.show(texts[newState]);
      this.changed.fire();
    });
    await this.made.start();
  }

  private show(state: string): void {
    this.state = state;
    this.status.text = `Molt: ${state || "no recipe"}${this.notes.length > 0 ? " $(warning)" : ""}`;
    this.status.tooltip = ["Molt Runner: the recipes' language server", ...this.notes].join("\n");
    this.status.show();
  }
}

/** Starts the server once there is a recipe: one on disk where recipes usually lie, or one that is opened. */
export async function startWithRecipe(services: Services): Promise<void> {
  const { mayBecomeRecipe } = await import("../../lsp/src/service/documents.ts");
  const start = () => {
    for (const one of watching.splice(0)) one.dispose();
    vscode.commands.executeCommand("setContext", "molt.hasRecipes", true);
    services.server.start(services);
  };
  const look = (document: vscode.TextDocument) =>
    document.languageId === "yaml" && mayBecomeRecipe(document.uri.fsPath, document.getText()) && start();
  const watching = [
    vscode.workspace.onDidOpenTextDocument(look),
    vscode.workspace.onDidChangeTextDocument(({ document }) => look(document)),
  ];
  services.context.subscriptions.push(...watching);
  vscode.workspace.textDocuments.forEach(look);
  const usual = "**/{recipe.yaml,recipes/*.yaml,recipes/*.yml}";
  if ((await vscode.workspace.findFiles(usual, "**/node_modules/**", 1)).length > 0) start();
}

/** The server's answer to a request of lsp/src/requests.ts; null when it is down, late or has none. */
export async function ask<T>({ client }: Server, request: string, params: object): Promise<T | null> {
  try {
    return client && (await withDeadline(client.sendRequest<T | null>(request, params), 5, "the language server"));
  } catch {
    return null;
  }
}

/** The verb that the server takes the recipe for; `run` when it is down. */
export async function verbOf(server: Server, uri: vscode.Uri): Promise<Verb> {
  const params: RecipeParams = { uri: uri.toString() };
  return (await ask<ResolveResult>(server, resolveRequest, params))?.verb ?? "run";
}
