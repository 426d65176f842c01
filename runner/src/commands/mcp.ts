import { existsSync } from "node:fs";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { fileError } from "../errors.ts";
import { createServer } from "../mcp/server.ts";

export interface McpOptions {
  /** Nothing outside of it is read or written, but what recipes in it name. */
  root: string;
  allowLaunch: boolean;
}

/** Serves assistants over stdio until the client leaves. */
export async function mcpCommand({ root, allowLaunch }: McpOptions, version: string): Promise<never> {
  if (!existsSync(root)) throw fileError(root, "there is no such folder");
  process.chdir(root);
  // Standard output is the protocol's: whatever else would print goes beside it.
  console.log = console.error;
  serveStdio(() => createServer({ version, allowLaunch }), { onerror: (error) => console.error(error.message) });
  // What was started here goes with it.
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(0));
  process.stdin.once("close", () => process.exit(0));
  return new Promise(() => {});
}
