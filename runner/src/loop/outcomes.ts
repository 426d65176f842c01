import { type FailedRollout, type Group, Mask, type Rollout } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";
import type { GroupRecord } from "../telemetry/shards.ts";

/** Failed rollouts of what a step consumed or lost, by reason; of the model calls, shares by what ended them. */
export function outcomesOf(records: readonly GroupRecord[]): Record<string, number> {
  const metrics: Record<string, number> = {};
  const add = (name: string, amount: number) => {
    metrics[name] = (metrics[name] ?? 0) + amount;
  };
  for (const { reason } of records.flatMap(({ group }) => group.failed)) add(`failed/${reason}`, 1);
  const segments = records.flatMap(({ group }) => group.rollouts.flatMap((rollout) => rollout.segments));
  // Rows share turns.
  const turns = new Map(segments.flatMap((segment) => segment.turns.map((turn) => [turn.callId, turn.stop])));
  for (const stop of turns.values()) add(`turn/${stop}`, 1 / turns.size);
  return metrics;
}

/** A row's age: the trainer's version at its training minus that of its oldest trained token. */
export function ageOf(groups: Group[], trainerVersion: number): { staleness_mean: number; staleness_max: number } {
  const segments = groups.flatMap((group) => group.rollouts.flatMap((rollout) => rollout.segments));
  const ages = segments.flatMap(({ mask, versions }) => {
    const trained = versions.filter((_, position) => mask[position] === Mask.trained);
    return trained.length > 0 ? trainerVersion - trained.reduce((oldest, version) => Math.min(oldest, version)) : [];
  });
  const metrics = { staleness_mean: ages.length > 0 ? mean(ages) : 0, staleness_max: Math.max(0, ...ages) };
  return metrics;
}

/** Nothing of a rollout is data that has a token of a version that no engine had between two. */
export function withinVersions<T extends Rollout | FailedRollout>(
  outcome: T,
  from: number,
  to: number,
): T | FailedRollout {
  if (!("segments" in outcome)) return outcome;
  const { segments, runId, promptId, groupId, rolloutId, attempt } = outcome;
  const isOther = (version: number) => version !== -1 && (version < from || version > to);
  const other = segments.map(({ versions }) => versions.find(isOther)).find((version) => version !== undefined);
  if (other === undefined) return outcome;
  const message = `an engine gave a token of version ${other} while it had ${from} to ${to}`;
  return { runId, promptId, groupId, rolloutId, attempt, reason: "engine", message };
}
