import type { AgentPool, RolloutSampling } from "../agents/pool.ts";
import type { FailedRollout, Row } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import type { EnginePool } from "../engines/router.ts";
import { RunnerError } from "../errors.ts";

export interface EvalProfile {
  /** `accuracy` by the recipe's eval settings, `sampled` at the training temperature. */
  metric: "accuracy" | "sampled";
  sampling: RolloutSampling;
  samplesPerPrompt: number;
  pool: EnginePool;
}

/**
 * A metric is the mean over prompts of the mean score over samples (pass@1); failed rollouts are counted, not scored.
 */
export async function evaluate(
  rows: Row[],
  profiles: EvalProfile[],
  agents: AgentPool,
  evalId: string,
  signal: AbortSignal,
): Promise<Record<string, number>> {
  const metrics: Record<string, number> = { prompts: rows.length, failed: 0 };
  for (const profile of profiles) {
    const { metric, sampling, samplesPerPrompt, pool } = profile;
    const sample = (row: Row, number: number) => {
      const rolloutId = `${evalId}/${metric}/${row.id}/${number}`;
      return agents.runRollout({ row, groupId: rolloutId, rolloutId, attempt: 0, sampling, pool }, signal);
    };
    const outcomes = await Promise.all(
      rows.map((row) => Promise.all(Array.from({ length: samplesPerPrompt }, (_, number) => sample(row, number)))),
    );
    const failed = outcomes.flat().filter((one): one is FailedRollout => !("segments" in one));
    metrics.failed = metrics.failed! + failed.length;
    const scores = outcomes.map((samples) => samples.flatMap((one) => ("segments" in one ? one.score : [])));
    const means = scores.filter((samples) => samples.length > 0).map(mean);
    if (means.length === 0 && !signal.aborted) {
      const why = failed[0]?.message ?? "the eval set is empty";
      throw new RunnerError(`every rollout of the eval failed; the first: ${why}`);
    }
    metrics[metric] = mean(means);
  }
  return metrics;
}
