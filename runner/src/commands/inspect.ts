import { ExitCode } from "../errors.ts";
import { findRun } from "../telemetry/find-run.ts";
import { findRollout, readRollouts } from "../telemetry/shards.ts";
import * as view from "../telemetry/views/rollouts.ts";

type InspectOptions = view.RolloutFilter & { step?: number; limit: number; json: boolean };

/** Lists a run's rollouts, of which `limit` the newest, or shows one by turns and tokens. */
export async function inspectCommand(run: string, rolloutId: string | undefined, options: InspectOptions) {
  const { step, limit, json, ...filter } = options;
  if (rolloutId !== undefined) return showRollout(run, rolloutId, json);
  const rows: view.RolloutRow[] = [];
  for await (const stored of readRollouts(findRun(run), { step })) {
    rows.push(...view.rolloutRows(stored).filter((row) => view.isShown(row, filter)));
  }
  const kept = rows.slice(Math.max(0, rows.length - limit));
  console.log(json ? JSON.stringify(kept) : `${view.rolloutTable(kept)}\n${kept.length} of ${rows.length}`);
  return ExitCode.done;
}

async function showRollout(run: string, rolloutId: string, json: boolean): Promise<number> {
  const { openRecordedRun } = await import("./recorded-run.ts"); // a list needs no tokenizer
  const { directory, tokenizer } = await openRecordedRun(run);
  const { rollout, step } = await findRollout(directory, rolloutId);
  const textsOf = (tokens: Int32Array) => tokenizer.decodeBatch([...tokens].map((id) => [id]));
  const texts = await Promise.all(rollout.segments.map(({ tokens }) => textsOf(tokens)));
  const lists = (_: string, value: unknown) => (ArrayBuffer.isView(value) ? [...(value as Int32Array)] : value);
  console.log(json ? JSON.stringify({ ...rollout, step, texts }, lists) : view.rolloutText(rollout, texts));
  return ExitCode.done;
}
