import type { Group, Rollout, Segment, StopReason } from "../agents/types.ts";
import { hasSignal, mean, type ScoredRollout } from "../algorithms/advantages/estimator.ts";
import { advantageEstimator } from "../algorithms/advantages/registry.ts";
import { type DynamicFiltering, type GroupFilter, groupFilters } from "../algorithms/filters/dynamic-filtering.ts";
import { clipReward } from "../algorithms/reward.ts";
import { RunnerError } from "../errors.ts";
import type { Ranks } from "./handle.ts";
import { isTrained, trainedTokens } from "./packing.ts";
import type { TrainRow } from "./protocol.ts";
import { learningRate, type ScheduleSpec } from "./schedule.ts";
import { type BatchResult, dropRows, idsOf, planUpdate, putRows, runUpdates, type UpdatePlan } from "./update.ts";
import { cutUpdates } from "./updates.ts";

export interface TrainSettings {
  /** A key of `advantageEstimators`. */
  estimator: string;
  rewardClip: [number, number];
  dynamicFiltering: DynamicFiltering;
  updatesPerBatch: number;
  maxTokensPerDevice: number;
  schedule: ScheduleSpec;
}

/** A rollout with what training adds to it. */
interface TrainRollout extends ScoredRollout {
  rows: TrainRow[];
  advantage: number;
}

/** `dropped`: the groups that no update was made of, by id, with the reason. */
export type TrainResult = BatchResult & { dropped: Map<string, string> };

/**
 * One batch of groups: filter, advantages, updates. `updatesDone` counts the optimizer updates before it (schedule).
 * Failed rollouts have no reward and are in no baseline. The batch is consumed whatever happens; see `BatchResult`.
 */
export async function trainBatch(
  ranks: Ranks,
  { groups }: { groups: readonly Group[] },
  settings: TrainSettings,
  updatesDone: number,
): Promise<TrainResult> {
  const { kept, dropped, metrics } = filterGroups(groups, settings);
  const rollouts = withAdvantages(kept, settings);
  const plans = cutUpdates(rollouts, settings.updatesPerBatch).map((update) => {
    return planUpdate(
      update.flatMap((rollout) => rollout.rows),
      ranks.count,
      settings.maxTokensPerDevice,
    );
  });
  Object.assign(metrics, { rows: 0, tokens_trained: 0 });
  if (plans.length === 0) {
    const detail = `${groups.length} groups, ${kept.length} of them left after filtering, without a trained token`;
    const skipped = { reason: "no_trainable_tokens", detail } as const;
    return { metrics, tokens: 0, updates: 0, skipped, dropped: dropAll(kept, skipped.reason, dropped) };
  }
  await putRows(ranks, plans);
  await putAdvantages(ranks, plans, rollouts);
  await score(ranks, plans);
  const result = await runUpdates(ranks, plans, (made) => learningRate(settings.schedule, updatesDone + made));
  await dropRows(ranks, plans);
  const rows = plans.reduce((sum, plan) => sum + plan.microbatches.flat(2).length, 0);
  if (result.skipped && result.updates === 0) dropAll(kept, result.skipped.reason, dropped);
  return { ...result, dropped, metrics: { ...metrics, ...result.metrics, rows, tokens_trained: result.tokens } };
}

function dropAll(groups: readonly Group[], reason: string, dropped: Map<string, string>): Map<string, string> {
  for (const { groupId } of groups) dropped.set(groupId, reason);
  return dropped;
}

/** What is left of the groups, and metrics over the rollouts that came, raw rewards included. */
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

/** Model calls whose reply is trained; one that several rows begin with counts once. */
function turnsOf({ segments }: Rollout): number {
  return segments.reduce((sum, { mask, turns }) => sum + turns.filter(({ start }) => isTrained(mask, start)).length, 0);
}

/** For each reason to end, the part of the rollouts that ended for it. */
function stopShares(rollouts: readonly Rollout[]): Record<string, number> {
  const reasons = new Set(rollouts.map(({ stop }) => stop));
  const share = (reason: StopReason) => mean(rollouts.map(({ stop }) => Number(stop === reason)));
  return Object.fromEntries([...reasons].map((reason) => [`stop/${reason}`, share(reason)]));
}

/** What agents say in numbers, each over the rollouts that say it. */
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

/** One row a leaf; a leaf without a trained token is no row. */
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

/** Passes without gradient: the old policy where weights change between updates of one batch, and the reference. */
async function score(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  const microbatches = (rank: number) => plans.flatMap((plan) => idsOf(plan.microbatches[rank]!));
  if (plans.length > 1) await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as: "old" }));
  if (ranks.hasReference) await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as: "ref" }));
}
