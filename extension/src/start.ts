import { type ExtensionContext, window } from "vscode";
import { registerAssistants } from "./assistants.ts";
import { Server, startWithRecipe } from "./client.ts";
import { showCodeMap } from "./code-map.ts";
import { registerCommands } from "./commands.ts";
import { registerDocuments } from "./documents.ts";
import { showRecipes } from "./recipes-view.ts";
import { Runs } from "./runs.ts";
import { showRuns } from "./runs-view.ts";
import type { Services } from "./services.ts";
import { registerTasks } from "./tasks.ts";

/** Starts every part; none waits for another. */
export function start(context: ExtensionContext): Services {
  const log = window.createOutputChannel("Molt Runner", { log: true });
  const services: Services = { context, server: new Server(), runs: new Runs(), log };
  context.subscriptions.push(log, services.server, services.runs, registerTasks(), registerDocuments());
  // A tool may be what the extension was started for.
  context.subscriptions.push(...registerAssistants(services));
  registerCommands(services);
  showRuns(services);
  showRecipes(services);
  showCodeMap(services);
  setImmediate(() => startRest(services).catch((error) => log.error(error)));
  return services;
}

/** Parts with libraries of their own, which are loaded while the editor goes on. */
async function startRest(services: Services): Promise<void> {
  await startWithRecipe(services);
  const { restoreDashboard } = await import("./dashboard.ts");
  const { restoreInspectors } = await import("./inspector.ts");
  services.context.subscriptions.push(restoreDashboard(services), restoreInspectors(services));
  const { LiveValues } = await import("./live-values.ts");
  services.context.subscriptions.push(new LiveValues(services));
  const { registerTests } = await import("./tests.ts");
  registerTests(services);
  const { skewLines, warnOfSkew } = await import("./doctor.ts");
  warnOfSkew(services, skewLines());
}
