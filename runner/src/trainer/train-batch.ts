import type { Group, Rollout, Segment, StopReason } from "../agents/types.ts";
import { hasSignal, mean, type ScoredRollout } from "../algorithms/advantages/estimator.ts";
import { advantageEstimator } from "../algorithms/advantages/registry.ts";
import { type DynamicFiltering, type GroupFilter, groupFilters } from "../algorithms/filters/dynamic-filtering.ts";
import { clipReward } from "../algorithms/reward.ts";
import { RunnerError } from "../errors.ts";
import type { Ranks } from "./handle.ts";
import { isTrained, trainedTokens } from "./packing.ts";
import type { TrainRow } from "./protocol.ts";
import {
  type BatchResult,
  idsOf,
  nothingToTrain,
  trainUpdates,
  type UpdatePlan,
  type UpdateSettings,
} from "./update.ts";
import { cutUpdates } from "./updates.ts";

export interface TrainSettings extends UpdateSettings {
  /** A key of `advantageEstimators`. */
  estimator: string;
  rewardClip: [number, number];
  dynamicFiltering: DynamicFiltering;
  updatesPerBatch: number;
}

interface TrainRollout extends ScoredRollout {
  rows: TrainRow[];
  advantage: number;
}

/** `dropped`: reasons by group id. */
export type TrainResult = BatchResult & { dropped: Map<string, string> };

/**
 * Filter, advantages, updates of one batch. `updatesDone`: optimizer updates before it (schedule). Failed rollouts are
 * in no baseline. The batch is consumed whatever happens; see `BatchResult`.
 */
export async function trainBatch(
  ranks: Ranks,
  { groups }: { groups: readonly Group[] },
  settings: TrainSettings,
  updatesDone: number,
): Promise<TrainResult> {
  const { kept, dropped, metrics } = filterGroups(groups, settings);
  const rollouts = withAdvantages(kept, settings);
  const updates = cutUpdates(rollouts, settings.updatesPerBatch).map((update) => update.flatMap(({ rows }) => rows));
  const detail = `${groups.length} groups, ${kept.length} of them left after filtering, without a trained token`;
  const result =
    updates.length === 0
      ? nothingToTrain(detail)
      : await trainUpdates(ranks, updates, settings, updatesDone, async (plans) => {
          await putAdvantages(ranks, plans, rollouts);
          await score(ranks, plans);
        });
  if (result.skipped && result.updates === 0) {
    for (const { groupId } of kept) dropped.set(groupId, result.skipped.reason);
  }
  return { ...result, dropped, metrics: { ...metrics, ...result.metrics } };
}

/** With metrics over all rollouts that came, of raw rewards. */
function filterGroups(groups: readonly Group[], { dynamicFiltering, rewardClip }: TrainSettings) {
  const filter: GroupFilter = groupFilters[dynamicFiltering];
  const rollouts = groups.flatMap((group) => group.rollouts);
  const rewards = rollouts.map((rollout) => rollout.reward);
  const average = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
  const reward = average(rewards);
  const metrics: Record<string, number> = {
    reward,
    reward_std: Math.sqrt(average(rewards.map((value) => (value - reward) ** 2))),
    response_length: average(rollouts.map((rollout) => tokensOf(rollout))),
    turns: average(rollouts.map(turnsOf)),
    groups_without_signal: 0,
    ...stopShares(rollouts),
    ...averageInfo(rollouts),
  };
  const dropped = new Map<string, string>();
  const kept = groups.filter((group) => {
    const clipped = group.rollouts.map((rollout) => clipReward(finiteReward(rollout), rewardClip));
    if (!hasSignal(clipped)) metrics.groups_without_signal!++;
    const reason = clipped.length === 0 ? "failed" : filter(clipped);
    if (reason === null) return true;
    metrics[`groups_dropped/${reason}`] = (metrics[`groups_dropped/${reason}`] ?? 0) + 1;
    dropped.set(group.groupId, reason);
    return false;
  });
  return { kept, dropped, metrics };
}

/** Trained replies; one that several rows begin with counts once. */
function turnsOf({ segments }: Rollout): number {
  return segments.reduce((sum, { mask, turns }) => sum + turns.filter(({ start }) => isTrained(mask, start)).length, 0);
}

function stopShares(rollouts: readonly Rollout[]): Record<string, number> {
  const reasons = new Set(rollouts.map(({ stop }) => stop));
  const share = (reason: StopReason) => mean(rollouts.map(({ stop }) => Number(stop === reason)));
  return Object.fromEntries([...reasons].map((reason) => [`stop/${reason}`, share(reason)]));
}

/** Numbers only, each over the rollouts that have it. */
function averageInfo(rollouts: readonly Rollout[]): Record<string, number> {
  const names = new Set(rollouts.flatMap(({ info }) => Object.keys(info)));
  const values = (name: string) => rollouts.flatMap(({ info }) => info[name] ?? []);
  return Object.fromEntries([...names].map((name) => [`info/${name}`, mean(values(name))]));
}

function finiteReward({ reward, rolloutId }: Rollout): number {
  if (Number.isFinite(reward)) return reward;
  throw new RunnerError(`rollout ${rolloutId} has the reward ${reward}; a rollout without a reward is a failed one`);
}

function tokensOf({ segments }: Rollout): number {
  return segments.reduce((sum, { mask }) => sum + trainedTokens(mask), 0);
}

function withAdvantages(groups: readonly Group[], { estimator, rewardClip }: TrainSettings): TrainRollout[] {
  const scored = groups.flatMap((group) =>
    group.rollouts.map((rollout) => ({
      groupId: group.groupId,
      reward: clipReward(rollout.reward, rewardClip),
      tokens: tokensOf(rollout),
      rows: rowsOf(rollout),
    })),
  );
  const advantages = advantageEstimator(estimator)(scored);
  return scored.map((rollout, index) => ({ ...rollout, advantage: advantages[index]! }));
}

function rowsOf({ rolloutId, segments }: Rollout): TrainRow[] {
  return segments
    .map((segment, leaf) => trainRow(`${rolloutId}/${leaf}`, segment))
    .filter((row) => trainedTokens(row.mask) > 0);
}

function trainRow(id: string, { tokens, mask, logprobs, turns }: Segment): TrainRow {
  const temperatures = new Float32Array(tokens.length).fill(1);
  for (const { start, end, temperature } of turns) temperatures.fill(temperature, start, end);
  for (let t = 0; t < tokens.length; t++) {
    if (isTrained(mask, t) && !Number.isFinite(logprobs[t])) {
      throw new RunnerError(`row ${id} trains token ${t}, whose behaviour log-probability is ${logprobs[t]}`);
    }
  }
  return { id, tokens, mask, logprobs, temperatures };
}

async function putAdvantages(
  ranks: Ranks,
  plans: readonly UpdatePlan[],
  rollouts: readonly TrainRollout[],
): Promise<void> {
  const byRow = new Map(rollouts.flatMap(({ rows, advantage }) => rows.map((row) => [row.id, advantage] as const)));
  await ranks.all("putAdvantages", (rank) => {
    const rows = plans.flatMap((plan) => plan.microbatches[rank]!.flat());
    const scatter = ({ id, mask }: TrainRow) =>
      Float32Array.from(mask, (_, t) => (isTrained(mask, t) ? byRow.get(id)! : 0));
    return { ids: rows.map((row) => row.id), advantages: rows.map(scatter) };
  });
}

/** Without gradient: the old policy where weights change within a batch, and the reference. */
async function score(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  const microbatches = (rank: number) => plans.flatMap((plan) => idsOf(plan.microbatches[rank]!));
  if (plans.length > 1) await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as: "old" }));
  if (ranks.hasReference) await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as: "ref" }));
}
