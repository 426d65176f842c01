import type { ExtensionContext } from "vscode";

/** Everything else is evaluated here, and not before: what it costs is in the log. */
export async function activate(context: ExtensionContext): Promise<void> {
  const begun = performance.now();
  const { start } = await import("./start.ts");
  const { log } = start(context);
  log.info(`activated in ${Math.round(performance.now() - begun)} ms`);
}
