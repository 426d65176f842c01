import type { ExtensionContext, LogOutputChannel } from "vscode";
import type { Server } from "./client.ts";
import type { Runs } from "./runs.ts";

/** What the extension's parts share; they end with the extension. */
export interface Services {
  context: ExtensionContext;
  server: Server;
  runs: Runs;
  log: LogOutputChannel;
}
