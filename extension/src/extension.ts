import type { ExtensionContext } from "vscode";
import { createClient } from "./client.ts";
import { registerCommands } from "./commands.ts";

export async function activate(context: ExtensionContext): Promise<void> {
  const client = createClient(context);
  registerCommands(context, client);
  await client.start();
}
