import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { messageOf } from "../../runner/src/errors.ts";
import { emptyRun, type RunState } from "../../runner/src/telemetry/fold.ts";
import type { RunSummary } from "../../runner/src/telemetry/summary.ts";
import { fixed, visible } from "../../runner/src/telemetry/views/lines.ts";

/** What lists say of a run. */
export interface RunRow extends Pick<RunState, "failure" | "step" | "totalSteps" | "health"> {
  /** `died`: it says that it runs, and no process does. */
  state: RunState["state"] | "died" | "unreadable";
  reward: number | null;
}

export function rowOf(run: RunState, live: boolean): RunRow {
  const { failure, step, totalSteps, health, steps } = run;
  const state = run.state === "running" && !live ? "died" : run.state;
  return { state, failure, step, totalSteps, health, reward: steps.at(-1)?.metrics.reward ?? null };
}

const rows = new Map<string, { writtenAt: number; live: boolean; row: RunRow }>();

/** Of a run on disk: its summary, where its end wrote one, else its log; read again when that has grown. */
export async function readRow(directory: string, live: boolean): Promise<RunRow> {
  const writtenAt = modified(join(directory, "events.ndjson"));
  const known = rows.get(directory);
  if (known && known.writtenAt === writtenAt && known.live === live) return known.row;
  const row = (!live && summaryRow(directory, writtenAt)) || (await logRow(directory, live));
  rows.set(directory, { writtenAt, live, row });
  return row;
}

/** Null where there is none, or one that a run which was resumed has left behind. */
function summaryRow(directory: string, writtenAt: number): RunRow | null {
  const path = join(directory, "summary.json");
  if (modified(path) < writtenAt) return null;
  try {
    const summary = JSON.parse(readFileSync(path, "utf8")) as RunSummary;
    const { state, failure, steps, total_steps: totalSteps, reward, health } = summary;
    return { state, failure, step: steps, totalSteps, health, reward: reward.last };
  } catch {
    return null;
  }
}

async function logRow(directory: string, live: boolean): Promise<RunRow> {
  const { readRun } = await import("../../runner/src/telemetry/log.ts");
  try {
    return rowOf(readRun(directory), live);
  } catch (error) {
    return { ...rowOf(emptyRun(), live), state: "unreadable", failure: messageOf(error) };
  }
}

function modified(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

/** `34/60, reward 0.612, running` */
export function runLabel({ state, step, totalSteps, reward }: RunRow): string {
  return `${step}/${totalSteps ?? "?"}${reward === null ? "" : `, reward ${fixed(reward)}`}, ${state}`;
}

/** What a run is, in lines; what its agents wrote in it moves nothing. */
export function runTooltip(id: string, row: RunRow): string {
  return [id, runLabel(row), ...(row.failure ? [visible(row.failure)] : [])].join("\n");
}
