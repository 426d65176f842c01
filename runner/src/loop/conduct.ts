import { ExitCode, messageOf } from "../errors.ts";
import type { Recipe } from "../recipe/schema.ts";
import { watchHealth } from "../telemetry/health/watch.ts";
import { startLive } from "../telemetry/live/server.ts";
import type { EventLog } from "../telemetry/log.ts";
import { startSinks } from "../telemetry/sinks/index.ts";
import { type RunSummary, summarize, writeSummary } from "../telemetry/summary.ts";
import { TerminalReporter } from "../telemetry/terminal.ts";
import { bestCheckpoint, removePartialCheckpoints } from "./checkpoint.ts";
import type { RunDirectory } from "./run-directory.ts";

export interface ConductOptions {
  recipe: Recipe;
  directory: RunDirectory;
  log: EventLog;
  json: boolean;
  next: (summary: RunSummary) => string[];
}

type Outcome = "completed" | "interrupted";

/**
 * The frame of every run: shows events, serves them and feeds sinks, turns a signal into an interrupt (a second one
 * ends all at once), closes the log and writes the summary whatever happens. Resolves with the exit code; failures are
 * thrown on.
 */
export async function conduct(
  { recipe, directory, log, json, next }: ConductOptions,
  body: (interrupted: AbortSignal) => Promise<Outcome>,
): Promise<number> {
  const terminal = new TerminalReporter({ json });
  log.onEvent((event) => terminal.show(event));
  const end = (state: Outcome | "failed") => {
    log.emit({ type: "ended", state });
    const best = bestCheckpoint(directory.checkpoints, log.run, recipe.ckpt.best_metric_key);
    try {
      writeSummary(directory.path, log.run, best);
    } catch (error) {
      log.emit({ type: "warning", message: `the summary could not be written: ${messageOf(error)}` });
    }
    return summarize(log.run, best);
  };
  const interrupt = new AbortController();
  const onSignal = () => {
    if (interrupt.signal.aborted) {
      end("interrupted");
      removePartialCheckpoints(directory.checkpoints);
      directory.release();
      process.exit(ExitCode.interrupted);
    }
    log.emit({ type: "warning", message: "interrupted: finishing the step at hand (again to end at once)" });
    interrupt.abort();
  };
  process.on("SIGINT", onSignal).on("SIGTERM", onSignal);
  let stopLive = () => {};
  try {
    stopLive = await startLive(directory.path, directory.runId, log);
    const closeSinks = await startSinks(recipe, directory, log);
    watchHealth(log, recipe);
    const state = await body(interrupt.signal).finally(closeSinks);
    const summary = end(state);
    terminal.finish(summary, log.run, directory.path, next(summary));
    return state === "completed" ? ExitCode.done : ExitCode.interrupted;
  } catch (error) {
    log.emit({ type: "failed", message: messageOf(error) });
    end("failed");
    throw error;
  } finally {
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal);
    stopLive();
    directory.release();
  }
}
