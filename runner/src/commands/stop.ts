import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import { ExitCode, RunnerError } from "../errors.ts";
import { RunDirectory, signalRun, startOf } from "../loop/run-directory.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { findRun, ownerOf, workerOf } from "../telemetry/find-run.ts";
import { readRun } from "../telemetry/log.ts";

export interface StopOptions {
  /** Abandons the step at hand: the newest checkpoint stays. */
  now: boolean;
  /** Seconds. */
  timeout: number;
  json: boolean;
}

/** Ends a run from outside, as Ctrl-C does: once, or twice for `now`; waits until its process is gone. */
export async function stopCommand(name: string, { now, timeout, json }: StopOptions): Promise<number> {
  const path = findRun(name);
  const { runId } = RunDirectory.at(path);
  const [owner, pid] = [workerOf(path), ownerOf(path)];
  if (owner !== null) {
    const begun = pid === null ? "" : startOf(pid);
    // It lets go of the run a moment before it is gone.
    const isThere = () => workerOf(path) === owner || (begun !== "" && startOf(pid!) === begun);
    signalRun(path, now);
    for (const end = Date.now() + deadlineMs(timeout); isThere(); await sleep(100)) {
      if (Date.now() < end) continue;
      const fix = now ? `end ${owner} by force: kill -9, or scancel` : `molt-runner stop ${runId} --now`;
      throw new RunnerError(`run ${runId} is still at work in ${owner} after ${timeout} s`, { fix });
    }
  }
  const { state, step } = readRun(path);
  const how = state === "running" ? "died without a word" : state;
  if (json) console.log(JSON.stringify({ run: runId, stopped: owner !== null, state, step }));
  else if (owner === null) console.log(`nothing to do: nobody is at work on run ${runId} (${how}, step ${step})`);
  else console.log(`run ${runId} ended at step ${step}: ${how}`);
  if (!json && state !== "completed") console.log(`go on with: npx molt-runner resume ${displayPath(path)}`);
  return owner === null ? ExitCode.nothing : ExitCode.done;
}
