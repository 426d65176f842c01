import type { ExtensionContext } from "vscode";
import { startClient } from "./client.ts";
import { registerCommands } from "./commands.ts";

export async function activate(context: ExtensionContext): Promise<void> {
  registerCommands(context);
  await startClient(context);
}
