import { statSync } from "node:fs";
import { join } from "node:path";
import { ExitCode, messageOf, RunnerError } from "../errors.ts";
import { ownJob, requeueOwnJob } from "../launchers/slurm-job.ts";
import { submitRun } from "../launchers/slurm-submit.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { watchHealth } from "../telemetry/health/watch.ts";
import { followEvents } from "../telemetry/live/follow.ts";
import { startLive } from "../telemetry/live/server.ts";
import { readRun } from "../telemetry/log.ts";
import { startSinks } from "../telemetry/sinks/index.ts";
import { type RunSummary, summarize, writeSummary } from "../telemetry/summary.ts";
import { TerminalReporter } from "../telemetry/terminal.ts";
import { bestCheckpoint, removePartialCheckpoints } from "./checkpoint.ts";
import { type RunDirectory, signalRun } from "./run-directory.ts";
import type { RunOptions } from "./run-options.ts";

export interface ConductOptions extends Pick<RunOptions, "recipe" | "directory" | "log"> {
  json: boolean;
  /** Writes the first events. */
  begin: () => void;
  next: (summary: RunSummary) => string[];
}

type Outcome = "completed" | "interrupted";

/**
 * The frame of every run: shows events, serves them and feeds sinks, turns a signal into an interrupt (a second one
 * ends all at once), closes the log and writes the summary whatever happens. Resolves with the exit code; failures are
 * thrown on.
 */
export async function conduct(
  options: ConductOptions,
  body: (interrupted: AbortSignal) => Promise<Outcome>,
): Promise<number> {
  const { recipe, directory, log, json, begin, next } = options;
  if (recipe.launcher.kind === "slurm" && ownJob() === null) return conductJob(options);
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
  let goesBack = false;
  const onWarning = () => {
    log.emit({ type: "warning", message: "the job's time is almost over: saving, then back to the queue" });
    goesBack = true;
    interrupt.abort();
  };
  process.on("SIGINT", onSignal).on("SIGTERM", onSignal).on("SIGUSR2", onWarning);
  let stopLive = () => {};
  try {
    stopLive = await startLive(directory.path, directory.runId, log);
    const closeSinks = await startSinks(recipe, directory, log);
    watchHealth(log, recipe);
    begin();
    tellStarter(directory);
    const state = await body(interrupt.signal).finally(closeSinks);
    const summary = end(state);
    terminal.finish(summary, log.run, directory.path, next(summary));
    return state === "completed" ? ExitCode.done : ExitCode.interrupted;
  } catch (error) {
    log.emit({ type: "failed", message: messageOf(error) });
    end("failed");
    throw error;
  } finally {
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal).off("SIGUSR2", onWarning);
    stopLive();
    directory.release();
    if (goesBack && log.run.state === "interrupted") requeueOwnJob();
  }
}

/** Whoever started this process detached; it may be gone, which is no fault of the run. */
function tellStarter({ path }: RunDirectory): void {
  process.send?.({ run: path }, () => {});
}

/** The frame of a run that is a job: hands it in and shows its events; detached, it leaves it at that. */
async function conductJob({ recipe, directory, log, json, begin, next }: ConductOptions): Promise<number> {
  const { path, runId } = directory;
  begin();
  log.flush();
  directory.release();
  const position = { offset: statSync(directory.events).size };
  const terminal = new TerminalReporter({ json });
  terminal.total = log.run.totalSteps ?? 0;
  const job = submitRun(path, runId, recipe);
  if (!json) console.log(`run ${runId} is Slurm job ${job}: molt-runner watch, logs and stop take its name`);
  tellStarter(directory);
  if (process.send) return ExitCode.done;
  const onSignal = () => signalRun(path, false);
  process.on("SIGINT", onSignal).on("SIGTERM", onSignal);
  for await (const event of followEvents(path, position)) terminal.show(event);
  process.off("SIGINT", onSignal).off("SIGTERM", onSignal);
  const run = readRun(path);
  if (run.state === "running") {
    throw new RunnerError(`Slurm job ${job} ended without a word: see ${displayPath(join(path, "slurm.log"))}`);
  }
  const summary = summarize(run, bestCheckpoint(directory.checkpoints, run, recipe.ckpt.best_metric_key));
  terminal.finish(summary, run, path, next(summary));
  return { completed: ExitCode.done, interrupted: ExitCode.interrupted }[run.state as Outcome] ?? ExitCode.failed;
}
