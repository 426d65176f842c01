import { isAbsolute } from "node:path";
import type { Group, Rollout, Segment, StopReason } from "../agents/types.ts";
import {
  type AdvantageEstimator,
  type AdvantageSpec,
  type Advantages,
  centred,
  hasSignal,
  mean,
  type ScoredRollout,
  type ScoredTurn,
  sum,
} from "../algorithms/advantages/estimator.ts";
import { tokenAdvantages } from "../algorithms/advantages/gae.ts";
import { needsCritic } from "../algorithms/advantages/registry.ts";
import { aggregations, lengthWeights } from "../algorithms/aggregation.ts";
import { type GroupFilter, groupFilters, solveRates } from "../algorithms/filters/dynamic-filtering.ts";
import { klEstimators } from "../algorithms/kl.ts";
import { clipReward, overlongPenalty } from "../algorithms/reward.ts";
import { RunnerError } from "../errors.ts";
import type { Recipe } from "../recipe/index.ts";
import type { TrainedValues } from "../telemetry/shards.ts";
import type { Ranks } from "./handle.ts";
import { isTrained, type StoredRow, trainedTokens } from "./packing.ts";
import {
  type BatchResult,
  cutUpdates,
  idsOf,
  nothingToTrain,
  rowsOf,
  trainUpdates,
  type UpdatePlan,
  type UpdateSettings,
} from "./update.ts";

export interface TrainSettings extends UpdateSettings {
  recipe: Recipe;
  estimate: AdvantageEstimator;
  /** Of the KL term, in the reward or the loss. */
  klCoef: number;
}

interface TrainTurn extends ScoredTurn {
  row: StoredRow;
  start: number;
  end: number;
}

interface TrainRollout extends ScoredRollout {
  rolloutId: string;
  rows: StoredRow[];
  turns: TrainTurn[];
}

/** `dropped`: reasons by group id; `values`: by group id, then row id. */
export type TrainResult = BatchResult & {
  dropped: Map<string, string>;
  values?: Map<string, Record<string, TrainedValues>>;
};

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
  const { recipe } = settings;
  const { kept, dropped, metrics } = filterGroups(groups, recipe);
  const rollouts = kept.flatMap(({ groupId, rollouts }) => rollouts.map((one) => trainRollout(groupId, one, recipe)));
  const updates = cutUpdates(rollouts, recipe.train.updates_per_batch);
  const rows = updates.map((update) => update.flatMap((rollout) => rollout.rows));
  const left = `${groups.length} groups, ${kept.length} of them left after filtering, without a trained token`;
  const rates = groups.flatMap(({ rollouts }) =>
    rollouts.length > 0 ? mean(rollouts.map(({ reward }) => reward)) : [],
  );
  const result =
    updates.length === 0
      ? nothingToTrain(`${left}; ${solveRates(rates)}`)
      : await trainUpdates(ranks, rows, settings, updatesDone, async (plans) => {
          await score(ranks, plans, recipe.algo);
          Object.assign(metrics, setAdvantages(rollouts, settings));
          for (const update of updates) {
            const shares = aggregations[recipe.actor.loss_agg_mode](update);
            for (const [index, { rows }] of update.entries()) for (const row of rows) row.share = shares[index]!;
          }
          await putAdvantages(ranks, plans);
        });
  if (result.skipped && result.updates === 0) {
    for (const { groupId } of kept) dropped.set(groupId, result.skipped.reason);
  }
  return { ...result, dropped, values: valuesOf(rollouts), metrics: { ...metrics, ...result.metrics } };
}

/** Of the rows that went through an update. */
function valuesOf(rollouts: readonly TrainRollout[]): TrainResult["values"] {
  const values = new Map<string, Record<string, TrainedValues>>();
  for (const { groupId, rows } of rollouts) {
    for (const { id, mask, advantages, trainerLogprobs, entropy } of rows) {
      if (!advantages || !trainerLogprobs || !entropy) continue;
      const [given, logprobs, nats] = [advantages, trainerLogprobs, entropy].map((of) =>
        of.filter((_, t) => isTrained(mask, t)),
      );
      values.set(groupId, {
        ...values.get(groupId),
        [id]: { advantages: given!, logprobs: logprobs!, entropy: nats! },
      });
    }
  }
  return values;
}

/** With metrics over all rollouts that came, of raw rewards. */
function filterGroups(groups: readonly Group[], recipe: Recipe) {
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
    if (!hasSignal(clippedRewards(group, recipe))) metrics.groups_without_signal!++;
    const reason = dropReason(group, recipe);
    if (reason === null) return true;
    metrics[`groups_dropped/${reason}`] = (metrics[`groups_dropped/${reason}`] ?? 0) + 1;
    dropped.set(group.groupId, reason);
    return false;
  });
  return { kept, dropped, metrics };
}

/** Why a group leaves the batch; null keeps it. */
export function dropReason(group: Group, recipe: Recipe): string | null {
  const filter: GroupFilter = groupFilters[recipe.algo.dynamic_filtering];
  return group.rollouts.length === 0 ? "failed" : filter(clippedRewards(group, recipe));
}

function clippedRewards({ rollouts }: Group, recipe: Recipe): number[] {
  return rollouts.map(({ reward, rolloutId }) => {
    if (Number.isFinite(reward)) return clipReward(reward, recipe.reward.clip_range);
    throw new RunnerError(`rollout ${rolloutId} has the reward ${reward}; a rollout without a reward is a failed one`);
  });
}

/** Trained replies; one that several rows begin with counts once. */
function turnsOf({ segments }: Rollout): number {
  return segments.reduce((sum, { mask, turns }) => sum + turns.filter(({ start }) => isTrained(mask, start)).length, 0);
}

export function stopShares(rollouts: readonly Rollout[]): Record<string, number> {
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

export function tokensOf({ segments }: Rollout): number {
  return segments.reduce((sum, { mask }) => sum + trainedTokens(mask), 0);
}

/** What its steps gave goes to their turns, the rest of the clipped and shaped reward to the last one. */
function trainRollout(groupId: string, rollout: Rollout, recipe: Recipe): TrainRollout {
  const { rolloutId, segments } = rollout;
  const { clip_range: bounds, overlong_buffer_len: buffer, overlong_penalty_factor: factor } = recipe.reward;
  const replays = recipe.train.routing_replay;
  const rows = segments.map((segment, leaf) => trainRow(`${rolloutId}/${leaf}`, segment, replays));
  const turns = segments.flatMap((segment, leaf) => trainedTurns(segment, rows[leaf]!));
  const longest = recipe.rollout.max_new_tokens ?? Number.POSITIVE_INFINITY;
  const room = segments.flatMap(({ tokens, turns }) => [
    recipe.data.max_len - tokens.length,
    ...turns.map(({ start, end }) => longest - (end - start)),
  ]);
  const reward = clipReward(rollout.reward, bounds) - overlongPenalty(Math.min(...room), buffer, factor);
  const last = turns.at(-1);
  if (last) last.reward += reward - sum(turns.map((turn) => turn.reward));
  const trained = rows.filter((row) => trainedTokens(row.mask) > 0);
  return { groupId, rolloutId, reward, tokens: tokensOf(rollout), turns, rows: trained };
}

function trainedTurns({ turns }: Segment, row: StoredRow): TrainTurn[] {
  return turns.flatMap(({ start, end, reward = 0 }) => {
    const tokens = slotsOf({ row, start, end }).length;
    return tokens > 0 ? [{ row, start, end, reward, tokens }] : [];
  });
}

function trainRow(id: string, { tokens, mask, logprobs, turns, routes }: Segment, replays: boolean): StoredRow {
  if (replays && !routes) {
    const fix = "start vLLM with --enable-return-routed-experts, or leave train.routing_replay out";
    throw new RunnerError(`row ${id} has no routes to replay: its engine recorded none`, { fix });
  }
  const temperatures = new Float32Array(tokens.length).fill(1);
  for (const { start, end, temperature } of turns) temperatures.fill(temperature, start, end);
  for (let t = 0; t < tokens.length; t++) {
    if (isTrained(mask, t) && !Number.isFinite(logprobs[t])) {
      throw new RunnerError(`row ${id} trains token ${t}, whose behaviour log-probability is ${logprobs[t]}`);
    }
  }
  return { id, tokens, mask, logprobs, temperatures, ...(replays && { routes }) };
}

/** Without gradient: the old policy where weights change within a batch or rewards need it, reference and critic. */
async function score(ranks: Ranks, plans: readonly UpdatePlan[], { kl, advantage }: Recipe["algo"]): Promise<void> {
  const run = async (as: "old" | "ref" | "values") => {
    const microbatches = (rank: number) => plans.flatMap((plan) => idsOf(plan.microbatches[rank]!));
    const results = await ranks.all("score", (rank) => ({ microbatches: microbatches(rank), as }));
    results.forEach(({ logprobs }, rank) => {
      for (const [index, row] of rowsOf(plans, rank).entries()) row[as] = logprobs[index]!;
    });
  };
  if (plans.length > 1 || (ranks.hasReference && !kl.use_loss)) await run("old");
  if (ranks.hasReference) await run("ref");
  if (needsCritic(advantage.estimator)) await run("values");
}

/** One value a token of each row, 0 on untrained ones; returns too where there is a critic. Gives their metrics. */
function setAdvantages(
  rollouts: readonly TrainRollout[],
  { estimate, klCoef, recipe: { algo } }: TrainSettings,
): Record<string, number> {
  const { estimator, length_alpha: alpha, clip, no_whiten, gamma, lam, pass_k } = algo.advantage;
  const spec = { no_whiten, gamma, lam, pass_k };
  const inReward = algo.kl.init_coef > 0 && !algo.kl.use_loss;
  const hasCritic = needsCritic(estimator);
  const charged = inReward ? rollouts.map((rollout) => lessKl(rollout, klCoef, algo)) : rollouts;
  const scored = hasCritic ? charged.map(withValues) : charged;
  const advantages = ofTokens(estimate(scored, spec), rollouts, estimator);
  const weights = lengthWeights(rollouts, alpha);
  const limit = clip ?? Number.POSITIVE_INFINITY;
  for (const [index, { rows, turns }] of rollouts.entries()) {
    for (const row of rows) row.advantages = new Float32Array(row.tokens.length);
    for (const [k, turn] of turns.entries()) {
      const bounded = advantages[index]![k]!.map((value) => Math.min(Math.max(value * weights[index]!, -limit), limit));
      spread(turn, turn.row.advantages!, bounded);
    }
  }
  return hasCritic ? setReturns(scored, spec) : {};
}

/** The variance of the returns that the critic explained before the update, in parts: 1 - Var(G - V) / Var(G). */
function setReturns(rollouts: readonly TrainRollout[], spec: AdvantageSpec): Record<string, number> {
  const [gaps, returns]: [number[], number[]] = [[], []];
  for (const rollout of rollouts) {
    for (const row of rollout.rows) row.returns = new Float32Array(row.tokens.length);
    for (const [k, advantages] of tokenAdvantages(rollout, spec).entries()) {
      const turn = rollout.turns[k]!;
      const given = advantages.map((advantage, t) => advantage + turn.values![t]!);
      spread(turn, turn.row.returns!, given);
      gaps.push(...advantages);
      returns.push(...given);
    }
  }
  const variance = (values: number[]) => mean(centred(values).map((value) => value ** 2));
  const total = variance(returns);
  const metrics: Record<string, number> = { value_mean: mean(returns) - mean(gaps) };
  if (total > 0) metrics.explained_variance = 1 - variance(gaps) / total;
  return metrics;
}

/** Of each rollout, for each turn, one a token; a file of the recipe's may have given anything. */
function ofTokens(given: Advantages | undefined, rollouts: readonly TrainRollout[], estimator: string): number[][][] {
  const wrong = (what: string) => {
    const message = `algo.advantage.estimator gave ${what}; it gives a finite number each, or a list of one a turn`;
    return new RunnerError(message, isAbsolute(estimator) ? { position: { file: estimator } } : {});
  };
  if (given?.length !== rollouts.length) throw wrong(`${given?.length ?? "no"} values for ${rollouts.length} rollouts`);
  return rollouts.map(({ rolloutId, turns }, index) => {
    const value = given[index];
    const values = typeof value === "number" ? turns.map(() => value) : Array.from(value ?? []);
    const lists = turns.map(({ tokens }, k) => {
      const own = values[k];
      return typeof own === "number" ? new Array<number>(tokens).fill(own) : Array.from(own ?? []);
    });
    const fits = lists.every((list, k) => list.length === turns[k]!.tokens && list.every(Number.isFinite));
    if (values.length === turns.length && fits) return lists;
    throw wrong(`[${values}] for the ${turns.length} turns of rollout ${rolloutId}`);
  });
}

/** The KL of a turn's tokens to the reference is a cost of the turn. */
function lessKl(rollout: TrainRollout, coef: number, { kl }: Recipe["algo"]): TrainRollout {
  const turns = rollout.turns.map((turn) => {
    const { old, ref } = turn.row;
    const costs = slotsOf(turn).map((t) => coef * klEstimators[kl.estimator](old![t]! - ref![t]!));
    return { ...turn, costs, reward: turn.reward - sum(costs) };
  });
  return { ...rollout, turns, reward: rollout.reward - sum(turns.map(({ costs }) => sum(costs))) };
}

function withValues(rollout: TrainRollout): TrainRollout {
  const turns = rollout.turns.map((turn) => ({ ...turn, values: slotsOf(turn).map((t) => turn.row.values![t]!) }));
  return { ...rollout, turns };
}

/** Places of a turn's trained tokens. */
function slotsOf({ row: { mask }, start, end }: Pick<TrainTurn, "row" | "start" | "end">): number[] {
  const slots: number[] = [];
  for (let t = start; t < end; t++) if (isTrained(mask, t)) slots.push(t);
  return slots;
}

function spread(turn: TrainTurn, into: Float32Array, values: number[]): void {
  for (const [k, t] of slotsOf(turn).entries()) into[t] = values[k]!;
}

async function putAdvantages(ranks: Ranks, plans: readonly UpdatePlan[]): Promise<void> {
  await ranks.all("putAdvantages", (rank) => {
    const rows = rowsOf(plans, rank);
    return { rows: rows.map(({ id, advantages, returns, share }) => ({ id, advantages, returns, share })) };
  });
}
