import { isAtWork, jobOf } from "../../launchers/slurm-job.ts";
import { listRuns, ownerOf } from "../find-run.ts";
import { emptyRun } from "../fold.ts";
import { readRun } from "../log.ts";
import { fixed, table } from "./lines.ts";

/**
 * Every run below `root`, the one written to last first. `died`: it says that it runs, and no process does; `queued`:
 * its job has no machines yet, or any more; `unreadable`: `logs` says why.
 */
export function runRows(root: string) {
  return listRuns(root).map(({ id, path, writtenAt }) => {
    const { state, step, totalSteps, steps, evals } = readOrNot(path);
    const isLeft = state === "running" && ownerOf(path) === null;
    const job = isLeft ? jobOf(path) : null;
    const lacking = job === null ? "died" : "queued";
    // Where Slurm does not answer, what the run itself says stands.
    const shown = isLeft && !(job && isAtWork(job)) ? lacking : state;
    const [reward, accuracy] = [steps.at(-1)?.metrics.reward ?? null, evals.at(-1)?.metrics.accuracy ?? null];
    return { id, state: shown, step, totalSteps, reward, accuracy, writtenAt };
  });
}

function readOrNot(path: string) {
  try {
    return readRun(path);
  } catch {
    return { ...emptyRun(), state: "unreadable" };
  }
}

/** `now` as `writtenAt`: milliseconds since the epoch. */
export function runTable(rows: ReturnType<typeof runRows>, now: number): string {
  const cells = rows.map(({ id, state, step, totalSteps, reward, accuracy, writtenAt }) => {
    const minutes = Math.round((now - writtenAt) / 60_000);
    const age = minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
    return [id, state, `${step}/${totalSteps ?? "?"}`, fixed(reward), fixed(accuracy), age];
  });
  return table([["run", "state", "step", "reward", "eval", "age"], ...cells]);
}
