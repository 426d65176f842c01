import { join } from "node:path";
import { ExitCode } from "../errors.ts";
import type { TimedEvent } from "../telemetry/events.ts";
import { findRun } from "../telemetry/find-run.ts";
import { followEvents } from "../telemetry/live/follow.ts";
import { readEvents } from "../telemetry/log.ts";
import { timedLine } from "../telemetry/views/report.ts";

/** Every event of a run in a line; with `follow` those to come, until its process is gone. */
export async function logsCommand(run: string, { follow, json }: { follow: boolean; json: boolean }): Promise<number> {
  const print = (event: TimedEvent) => console.log(json ? JSON.stringify(event) : timedLine(event));
  const directory = findRun(run);
  const left = new AbortController();
  process.stdout.once("error", () => left.abort()); // whoever reads a pipe may go
  if (follow) for await (const event of followEvents(directory, { offset: 0 }, left.signal)) print(event);
  else for (const event of readEvents(join(directory, "events.ndjson"))) print(event);
  return ExitCode.done;
}
