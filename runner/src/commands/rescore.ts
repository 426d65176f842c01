import { resolve } from "node:path";
import { importUserFile } from "../agents/bundle.ts";
import { gradeRollout } from "../agents/graders/grade.ts";
import { graderOf, locator } from "../agents/load.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import { ExitCode, fileError, messageOf, usageError } from "../errors.ts";
import { rolloutLimits } from "../loop/parts.ts";
import { readRollouts } from "../telemetry/shards.ts";
import { visible } from "../telemetry/views/lines.ts";
import { openRecordedRun, readRows } from "./recorded-run.ts";

/** Grades a run's stored rollouts by a file's grader, beside the rewards that they had. Writes nothing. */
export async function rescoreCommand(name: string, { agent, json }: { agent: string; json: boolean }): Promise<number> {
  const path = resolve(agent);
  const grade = graderOf(await importUserFile(path, "--agent"));
  const fix = "export function grade(text, label) { return text === label ? 1 : 0; }";
  if (!grade) throw fileError(agent, "--agent: this file exports no function grade", fix);
  const { directory, recipe, tokenizer } = await openRecordedRun(name);
  const rowOf = await readRows(recipe);
  const context = { tokenizer, limits: rolloutLimits(recipe), locate: locator(path) };
  const rewards: { before: number; after: number }[] = [];
  let failed = 0;
  for await (const { step, group, dropped } of readRollouts(directory)) {
    if (dropped?.reason === "eval") continue; // graded as they were evaluated
    const row = rowOf(group.promptId);
    const graded = group.rollouts.map((rollout) => gradeRollout(grade, rollout, row, context));
    for (const [index, outcome] of (await Promise.allSettled(graded)).entries()) {
      const { rolloutId, reward: before } = group.rollouts[index]!;
      const after = outcome.status === "fulfilled" ? outcome.value.reward : null;
      const message = outcome.status === "rejected" ? messageOf(outcome.reason) : undefined;
      if (after === null) failed++;
      else rewards.push({ before, after });
      const text = visible(`step ${step} ${rolloutId}: ${before} -> ${after ?? `failed: ${message}`}`);
      if (json) console.log(JSON.stringify({ step, rolloutId, before, after, message }));
      else if (after !== before) console.log(text);
    }
  }
  if (rewards.length + failed === 0) throw usageError(`${name} has stored no rollouts`);
  const [before, after] = (["before", "after"] as const).map((when) =>
    mean(rewards.map((one) => one[when])).toFixed(4),
  );
  const changed = rewards.filter((one) => one.before !== one.after).length;
  const counts = `${rewards.length} rollouts graded, ${changed} changed, ${failed} failed`;
  if (!json) console.log(`reward ${before} -> ${after}: ${counts}`);
  return ExitCode.done;
}
