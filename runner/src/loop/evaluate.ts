import type { AgentPool, RolloutSampling } from "../agents/pool.ts";
import type { FailedRollout, Group, Rollout, Row } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import type { EnginePool } from "../engines/router.ts";
import { RunnerError } from "../errors.ts";
import { isCut } from "../telemetry/funnel.ts";
import { stopShares, tokensOf } from "../trainer/train-batch.ts";

export interface EvalProfile {
  /** `accuracy` by the recipe's eval settings, `sampled` at the training temperature. */
  metric: "accuracy" | "sampled";
  sampling: RolloutSampling;
  samplesPerPrompt: number;
  pool: EnginePool;
}

export interface EvalTask {
  rows: Row[];
  profiles: EvalProfile[];
  /** Of the first profile. */
  passK: number[];
  evalId: string;
  /** That the engines have. */
  policyVersion: number;
}

type Sampled = Pick<EvalProfile, "metric"> & { source: string; group: Group };

/**
 * `metrics` of one data source begin with its name and a slash, and are there where there are several `sources`. One of
 * `groups` is a prompt's under a profile. Failed rollouts are counted, not scored.
 */
export async function evaluate(task: EvalTask, agents: AgentPool, signal: AbortSignal) {
  const { rows, profiles, passK, evalId, policyVersion } = task;
  const sampled: Sampled[] = [];
  for (const { metric, sampling, samplesPerPrompt, pool } of profiles) {
    const sample = async (row: Row): Promise<Sampled> => {
      const ids = { groupId: `${evalId}/${metric}/${row.id}`, attempt: 0 };
      const runs = Array.from({ length: samplesPerPrompt }, (_, number) =>
        agents.runRollout({ row, ...ids, rolloutId: `${ids.groupId}/${number}`, sampling, pool }, signal),
      );
      const outcomes = await Promise.all(runs);
      const rollouts = outcomes.filter((one) => "segments" in one);
      const failed = outcomes.filter((one): one is FailedRollout => !("segments" in one));
      const group = { ...ids, promptId: row.id, epoch: 0, admittedVersion: policyVersion, rollouts, failed };
      return { metric, source: sourceOf(row), group };
    };
    const made = await Promise.all(rows.map(sample));
    if (!signal.aborted && made.every(({ group }) => group.rollouts.length === 0)) {
      const why = made[0]?.group.failed[0]?.message ?? "the eval set is empty";
      throw new RunnerError(`every rollout of the eval failed; the first: ${why}`);
    }
    sampled.push(...made);
  }
  const all = [...new Set(sampled.map(({ source }) => source))];
  const sources = all.length > 1 ? all : [];
  const metrics = metricsOf(sampled, passK);
  for (const wanted of sources) {
    const own = sampled.filter(({ source }) => source === wanted);
    for (const [name, value] of Object.entries(metricsOf(own, passK))) metrics[`${wanted}/${name}`] = value;
  }
  return { metrics, sources, groups: sampled.map(({ group }) => group) };
}

/** The row's `data_source`, or its file. */
function sourceOf({ id, fields }: Row): string {
  return typeof fields.data_source === "string" ? fields.data_source : id.slice(0, id.lastIndexOf(":"));
}

/**
 * Means over prompts of the means over their samples, with the standard error of that mean; what is not of a profile's
 * name is of the first profile, `accuracy`. Truncated is a rollout with a turn that a limit of tokens ended.
 */
function metricsOf(sampled: Sampled[], passK: number[]): Record<string, number> {
  const rolloutsOf = (wanted: string) => sampled.flatMap((one) => (one.metric === wanted ? [one.group.rollouts] : []));
  const own = rolloutsOf("accuracy");
  const metrics: Record<string, number> = { prompts: own.length, failed: 0 };
  for (const { group } of sampled) metrics.failed! += group.failed.length;
  const means = (groups: Rollout[][], value: (rollout: Rollout) => number) =>
    groups.filter((rollouts) => rollouts.length > 0).map((rollouts) => mean(rollouts.map(value)));
  for (const metric of new Set(sampled.map((one) => one.metric))) {
    const scores = means(rolloutsOf(metric), ({ score }) => score);
    if (scores.length === 0) continue; // a source whose rollouts all failed has no accuracy
    const average = mean(scores);
    const variance = mean(scores.map((score) => (score - average) ** 2));
    metrics[metric] = average;
    if (scores.length > 1) metrics[`${metric}_stderr`] = Math.sqrt(variance / (scores.length - 1));
  }
  const rollouts = own.flat();
  if (rollouts.length === 0) return metrics;
  for (const k of passK) {
    const enough = own.filter(({ length }) => length >= k).map((group) => group.map(({ score }) => score));
    if (enough.length > 0) metrics[`pass@${k}`] = mean(enough.map((scores) => passAtK(scores, k)));
  }
  const lengths = rollouts.map(tokensOf);
  metrics.reward = mean(means(own, ({ reward }) => reward));
  metrics.truncated = mean(rollouts.map((rollout) => Number(isCut(rollout.segments))));
  metrics.response_length = mean(lengths);
  metrics.response_length_max = lengths.reduce((most, length) => Math.max(most, length));
  return { ...metrics, ...stopShares(rollouts) };
}

/**
 * The expected best of k of the scores, drawn without replacement. Of scores 0 and 1, c of n being 1, it is the
 * unbiased pass@k of Chen et al. 2021 (arXiv 2107.03374): 1 - C(n - c, k) / C(n, k).
 */
export function passAtK(scores: readonly number[], k: number): number {
  let total = 0;
  // That the best is the one with `below` others at or below it: C(below, k - 1) / C(n, k).
  let chance = k / scores.length;
  for (const [above, score] of [...scores].sort((one, other) => other - one).entries()) {
    const below = scores.length - 1 - above;
    if (below < k - 1) break;
    total += chance * score;
    chance *= (below - k + 1) / below;
  }
  return total;
}
