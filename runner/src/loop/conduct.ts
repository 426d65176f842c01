import { ExitCode, messageOf } from "../errors.ts";
import type { EventLog } from "../telemetry/log.ts";
import { type RunSummary, writeSummary } from "../telemetry/summary.ts";
import { TerminalReporter } from "../telemetry/terminal.ts";
import type { RunDirectory } from "./run-directory.ts";

export interface ConductOptions {
  directory: RunDirectory;
  log: EventLog;
  json: boolean;
  next: (summary: RunSummary) => string[];
}

type Outcome = "completed" | "interrupted";

/**
 * The frame of every run: shows events, turns a signal into an interrupt (a second one ends all at once), closes the
 * log and writes the summary whatever happens. Resolves with the exit code; failures are thrown on.
 */
export async function conduct(
  { directory, log, json, next }: ConductOptions,
  body: (interrupted: AbortSignal) => Promise<Outcome>,
): Promise<number> {
  const terminal = new TerminalReporter({ json });
  log.onEvent((event) => terminal.show(event));
  const end = (state: Outcome | "failed") => {
    log.emit({ type: "ended", state });
    return writeSummary(directory.path);
  };
  const interrupt = new AbortController();
  const onSignal = () => {
    if (interrupt.signal.aborted) {
      end("interrupted");
      directory.release();
      process.exit(ExitCode.interrupted);
    }
    log.emit({ type: "warning", message: "interrupted: finishing the step at hand (again to end at once)" });
    interrupt.abort();
  };
  process.on("SIGINT", onSignal).on("SIGTERM", onSignal);
  try {
    const state = await body(interrupt.signal);
    const { summary, run } = end(state);
    terminal.finish(summary, run, directory.path, next(summary));
    return state === "completed" ? ExitCode.done : ExitCode.interrupted;
  } catch (error) {
    try {
      log.emit({ type: "failed", message: messageOf(error) });
      end("failed");
    } catch {
      // A full disk, which then ended the run: the first error counts.
      terminal.stop();
    }
    throw error;
  } finally {
    process.off("SIGINT", onSignal).off("SIGTERM", onSignal);
    directory.release();
  }
}
