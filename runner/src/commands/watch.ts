import { ExitCode } from "../errors.ts";
import { findRun } from "../telemetry/find-run.ts";
import { applyEvent, emptyRun } from "../telemetry/fold.ts";
import { follow } from "../telemetry/live/follow.ts";
import { TerminalReporter } from "../telemetry/terminal.ts";
import { visible } from "../telemetry/views/lines.ts";
import { watchScreen } from "../telemetry/views/screen.ts";

/** Follows a run: charts on a terminal until q, lines elsewhere. Ends with the run, which knows nothing of it. */
export async function watchCommand(name: string, { json }: { json: boolean }): Promise<number> {
  const directory = findRun(name);
  const stop = new AbortController();
  const leave = () => stop.abort();
  process.once("SIGINT", leave).once("SIGTERM", leave);
  const { stdin, stdout } = process;
  stdout.once("error", leave); // whoever reads a pipe may go
  const isScreen = !json && stdout.isTTY && stdin.isTTY;
  if (isScreen) stdin.setRawMode(true).on("data", (keys) => ["q", "\u0003"].includes(String(keys)) && leave());
  const reporter = new TerminalReporter({ json });
  let run = emptyRun();
  for await (const update of follow(directory, stop.signal)) {
    if (update.type === "snapshot") run = update.run;
    else applyEvent(run, update.event);
    reporter.total = run.totalSteps ?? 0;
    if (isScreen && update.type === "event" && update.event.type === "group") continue;
    if (isScreen) stdout.write(`\x1b[H\x1b[J${watchScreen(run, stdout.columns)}\n\nq leaves\n`);
    else if (update.type === "event") reporter.show(update.event);
    else console.log(json ? JSON.stringify(update) : watchScreen(run, 96));
  }
  if (isScreen) stdin.setRawMode(false);
  const end = run.state === "running" ? "its process is gone" : run.state;
  if (!json && !stop.signal.aborted) console.log(visible(`${end}${run.failure ? `: ${run.failure}` : ""}`));
  return ExitCode.done;
}
