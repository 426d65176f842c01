import { ExitCode } from "../errors.ts";
import { runRows, runTable } from "../telemetry/views/runs.ts";

export function runsCommand({ dir, json }: { dir: string; json: boolean }): number {
  const rows = runRows(dir);
  console.log(json ? JSON.stringify(rows) : runTable(rows, Date.now()));
  return ExitCode.done;
}
