import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ExitCode } from "../errors.ts";
import { replaceFile } from "../files.ts";
import { findRun } from "../telemetry/find-run.ts";
import { readEvents } from "../telemetry/log.ts";
import { reportHtml } from "../telemetry/views/report.ts";

/** Writes a run's report, one HTML page. */
export function reportCommand(run: string, options: { output?: string; rollouts: boolean; json: boolean }): number {
  const directory = findRun(run);
  const recipe = readFileSync(join(directory, "recipe.yaml"), "utf8");
  const path = options.output ?? join(directory, "report.html");
  replaceFile(path, reportHtml(readEvents(join(directory, "events.ndjson")), recipe, options.rollouts));
  console.log(options.json ? JSON.stringify({ report: path }) : `the report is in ${path}`);
  return ExitCode.done;
}
