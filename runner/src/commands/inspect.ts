import type { Rollout } from "../agents/types.ts";
import { ExitCode } from "../errors.ts";
import { findRun } from "../telemetry/find-run.ts";
import { findRollouts, readRollouts } from "../telemetry/shards.ts";
import { specialTokens, tokenTexts } from "../telemetry/token-texts.ts";
import * as view from "../telemetry/views/rollouts.ts";

type InspectOptions = view.RolloutFilter & { step?: number; limit: number; json: boolean };

/** Lists a run's rollouts, of which `limit` the newest, or shows one, or those of a group, by turns and tokens. */
export async function inspectCommand(run: string, id: string | undefined, { json, ...wanted }: InspectOptions) {
  if (id !== undefined) return showRollouts(run, id, json);
  const { rollouts, of } = await listRollouts(findRun(run), wanted);
  console.log(json ? JSON.stringify(rollouts) : `${view.rolloutTable(rollouts)}\n${rollouts.length} of ${of}`);
  return ExitCode.done;
}

/** The newest of a run directory's rollouts, and of how many. */
export async function listRollouts(directory: string, { step, limit, ...filter }: Omit<InspectOptions, "json">) {
  const rows: view.RolloutRow[] = [];
  for await (const stored of readRollouts(directory, { step })) {
    rows.push(...view.rolloutRows(stored).filter((row) => view.isShown(row, filter)));
  }
  // Those of evals, where they are asked for or there are no others.
  const trained = rows.filter(({ dropped }) => dropped !== "eval" || filter.dropped === "eval");
  const wanted = trained.length > 0 ? trained : rows;
  return { rollouts: wanted.slice(Math.max(0, wanted.length - limit)), of: wanted.length };
}

async function showRollouts(run: string, id: string, json: boolean): Promise<number> {
  const { openRecordedRun } = await import("./recorded-run.ts"); // a list needs no tokenizer
  const { directory, tokenizer } = await openRecordedRun(run);
  const { rollouts, step, group } = await findRollouts(directory, id);
  const textsOf = ({ segments }: Rollout) => Promise.all(segments.map(({ tokens }) => tokenTexts(tokenizer, tokens)));
  const texts = await Promise.all(rollouts.map(textsOf));
  const lists = (_: string, value: unknown) => (ArrayBuffer.isView(value) ? [...(value as Int32Array)] : value);
  const special = await specialTokens(tokenizer, Int32Array.from(rollouts.flatMap(allTokens)));
  const values = rollouts.map((rollout, at) => ({ ...rollout, step, texts: texts[at]!, special }));
  if (json) console.log(JSON.stringify(id === group.groupId ? values : values[0], lists));
  else console.log(values.map((one) => view.rolloutText(one, one.texts)).join("\n"));
  return ExitCode.done;
}

function allTokens({ segments }: Rollout): number[] {
  return segments.flatMap(({ tokens }) => [...tokens]);
}
