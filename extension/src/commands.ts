import { commands, Uri, window } from "vscode";
import type { Location, Position } from "vscode-languageclient/node";
import { messageOf, RunnerError } from "../../runner/src/errors.ts";
import { notice } from "./documents.ts";
import { offerInstall } from "./install.ts";
import { MissingRunner } from "./runner.ts";
import type { Services } from "./services.ts";

type Handler = (services: Services) => (...given: never[]) => unknown;

/** Every command of package.json, and those of the language server's lenses. Each loads what it needs. */
export const table: Record<string, () => Promise<Handler>> = {
  "molt.run": async () => (await import("./recipe-actions.ts")).onRecipe(null),
  "molt.plan": async () => (await import("./recipe-actions.ts")).onRecipe("plan"),
  "molt.check": async () => (await import("./recipe-actions.ts")).onRecipe("check"),
  "molt.newRecipe": async () => (await import("./recipe-actions.ts")).newRecipe,
  "molt.newAgent": async () => (await import("./recipe-actions.ts")).newAgent,
  "molt.newEstimator": async () => (await import("./recipe-actions.ts")).newEstimator,
  "molt.explainKey": async () => (await import("./recipe-actions.ts")).explainKey,
  "molt.copyContext": async () => (await import("./recipe-actions.ts")).copyContext,
  "molt.evaluate": async () => (await import("./run-actions.ts")).evaluateTarget,
  "molt.stop": async () => (await import("./run-actions.ts")).stopRun,
  "molt.resume": async () => (await import("./run-actions.ts")).resumeRun,
  "molt.fork": async () => (await import("./run-actions.ts")).forkRun,
  "molt.openDashboard": async () => (await import("./dashboard.ts")).openDashboard,
  "molt.compareRuns": async () => (await import("./dashboard.ts")).compareRuns,
  "molt.inspectRollouts": async () => (await import("./inspector.ts")).inspectRollouts,
  "molt.openSource": async () => (await import("./source.ts")).openSource,
  "molt.debugAgent": async () => (await import("./debug.ts")).debugAgent,
  "molt.debugRollout": async () => (await import("./debug.ts")).debugRollout,
  "molt.doctor": async () => (await import("./doctor.ts")).doctor,
  "molt.refreshRuns": async () => (services) => () => services.runs.refresh(),
  "molt.showReferences": async () => showReferences,
};

export function registerCommands(services: Services): void {
  for (const [name, load] of Object.entries(table)) {
    const guarded = async (...given: unknown[]): Promise<unknown> => {
      try {
        const run = (await load())(services) as (...given: unknown[]) => unknown;
        return await run(...given);
      } catch (error) {
        // Once it is there, what was asked for goes on.
        if (error instanceof MissingRunner) return (await offerInstall(error.uri)) ? guarded(...given) : undefined;
        const message = error instanceof RunnerError ? error.format() : messageOf(error);
        services.log.error(`${name}: ${message}`);
        window.showErrorMessage(notice(message));
      }
    };
    services.context.subscriptions.push(commands.registerCommand(name, guarded));
  }
}

/** Opens the editor's own list; a server can only speak of places in the protocol's terms. */
function showReferences({ server: { client } }: Services) {
  return (uri: string, position: Position, locations: Location[]) => {
    if (!client) return;
    const { protocol2CodeConverter: converter } = client;
    const places = locations.map((location) => converter.asLocation(location));
    const at = converter.asPosition(position);
    return commands.executeCommand("editor.action.showReferences", Uri.parse(uri), at, places);
  };
}
