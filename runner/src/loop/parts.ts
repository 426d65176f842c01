import { AgentPool, type RolloutSampling } from "../agents/pool.ts";
import type { RolloutLimits } from "../agents/rollout.ts";
import type { Row } from "../agents/types.ts";
import { readDataset } from "../data/dataset.ts";
import type { ModelFolder } from "../data/model-folder.ts";
import { EngineFleet } from "../engines/fleet.ts";
import { type EngineInit, fleetOf } from "../engines/from-recipe.ts";
import type { Cluster } from "../launchers/cluster.ts";
import type { Seat } from "../launchers/node.ts";
import type { Recipe, Verb } from "../recipe/index.ts";
import { placementOf } from "../recipe/planner/placement.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { RankGroup, type RankGroupOptions } from "../trainer/handle.ts";
import type { LossSpec } from "../trainer/protocol.ts";
import { policyLoss, rankInit } from "../trainer/specs.ts";
import type { EvalProfile } from "./evaluate.ts";

/** Of a weight sync, and how long it can hold requests. */
export function syncDeadlines({ engine, rollout }: Recipe) {
  // Requests end at the turn's timeout: a longer drain is a fault.
  const drainSeconds = rollout.turn_timeout + 10;
  const deadlineSeconds = engine.sync_timeout;
  const syncSeconds = drainSeconds + deadlineSeconds * (1 + engine.count);
  return { drainSeconds, deadlineSeconds, heldSeconds: Math.max(syncSeconds, engine.start_timeout) };
}

export function rolloutLimits(recipe: Recipe): RolloutLimits {
  const { data, reward, rollout } = recipe;
  return {
    maxLen: data.max_len,
    maxTurns: rollout.max_turns,
    maxRequests: rollout.max_requests,
    rolloutSeconds: rollout.timeout,
    turnSeconds: rollout.turn_timeout,
    toolSeconds: rollout.tool_timeout,
    rewardSeconds: reward.timeout,
    heldSeconds: syncDeadlines(recipe).heldSeconds,
  };
}

export interface Sampling {
  fleet: EngineFleet;
  agents: AgentPool;
}

export interface Parts extends Sampling {
  ranks: RankGroup;
}

type Emit = (event: RunEvent) => void;

export async function startParts(
  recipe: Recipe,
  folder: ModelFolder,
  runId: string,
  emit: Emit,
  cluster: Cluster,
): Promise<Parts> {
  // Engines get their weights by the first sync, whatever the policy starts from.
  const [ranks, sampling] = await Promise.allSettled([
    startPlacedRanks(recipe, folder, cluster),
    startSampling(recipe, folder, runId, "random", emit, cluster),
  ]);
  if (ranks.status === "fulfilled" && sampling.status === "fulfilled") return { ranks: ranks.value, ...sampling.value };
  if (ranks.status === "fulfilled") await ranks.value.stop();
  if (sampling.status === "fulfilled") await stopSampling(sampling.value);
  throw [ranks, sampling].find((it) => it.status === "rejected")!.reason;
}

export async function stopParts(parts: Parts): Promise<void> {
  await stopSampling(parts);
  await parts.ranks.stop();
}

/** On the nodes that the recipe's numbers give them. */
export async function startPlacedRanks(
  recipe: Recipe,
  folder: ModelFolder,
  cluster: Cluster,
  loss?: LossSpec,
): Promise<RankGroup> {
  const { ranks } = placementOf(recipe, "run");
  const seats = await Promise.all(ranks.map((place) => cluster.seat(place)));
  return startRanks(recipe, folder, ranks.length, loss, seats);
}

/** A rank that is at a weight sync is not lost before the sync is. */
export function rankDeadlines({ actor, engine }: Recipe): RankGroupOptions["deadlines"] {
  return { start: actor.start_timeout, request: Math.max(actor.request_timeout, engine.sync_timeout) };
}

export async function startRanks(
  recipe: Recipe,
  folder: ModelFolder,
  count: number,
  loss = policyLoss(recipe),
  seats?: Seat[],
): Promise<RankGroup> {
  const init = rankInit(recipe, folder, loss);
  return RankGroup.start({ count, seats, init, deadlines: rankDeadlines(recipe) });
}

export async function startSampling(
  recipe: Recipe,
  folder: ModelFolder,
  runId: string,
  init: EngineInit,
  emit: Emit,
  cluster: Cluster,
  verb: Verb = "run",
): Promise<Sampling> {
  const { data, engine, rollout, run, train } = recipe;
  const { engines } = placementOf(recipe, verb);
  // Those that somebody else runs have their places.
  const seats = engine.urls.length === 0 && { seatOf: (index: number) => cluster.seat(engines[index]!) };
  const fleet = await EngineFleet.start({ ...fleetOf(recipe, folder.path, init), ...seats, emit });
  try {
    const agents = await AgentPool.start({
      workers: rollout.workers,
      agentPath: train.agent_path,
      onlyEnv: run.deterministic,
      agentCommand: train.agent_command,
      graderCommand: train.grader_command,
      tokenizerFolder: folder.path,
      chatTemplate: data.chat_template,
      eosTokenIds: folder.eosTokenIds,
      router: fleet.router,
      runId,
      seed: run.seed,
      limits: rolloutLimits(recipe),
      maxRestarts: run.max_restarts,
      emit,
    });
    return { fleet, agents };
  } catch (error) {
    await fleet.stop();
    throw error;
  }
}

export async function stopSampling({ agents, fleet }: Sampling): Promise<void> {
  await agents.stop();
  await fleet.stop();
}

/** Null without `eval.dataset`. */
export async function readEvalRows({ data, eval: evaluation }: Recipe): Promise<Row[] | null> {
  if (evaluation.dataset === null) return null;
  const options = { inputKey: data.input_key, labelKey: data.label_key, option: "eval.dataset" };
  return (await readDataset(evaluation.dataset, options)).rows;
}

export function evalProfiles({ eval: evaluation, rollout }: Recipe): EvalProfile[] {
  const { temperature, top_p: topP, n_samples_per_prompt: samplesPerPrompt } = evaluation;
  const maxNewTokens = evaluation.max_new_tokens ?? rollout.max_new_tokens;
  const greedy: RolloutSampling = { temperature, topP, topK: 0, maxNewTokens };
  const pool = evaluation.engines > 0 ? "eval" : "train";
  const profiles: EvalProfile[] = [{ metric: "accuracy", sampling: greedy, samplesPerPrompt, pool }];
  if (evaluation.sampled) {
    const sampling = { temperature: rollout.temperature, topP: 1, topK: 0, maxNewTokens };
    profiles.push({ metric: "sampled", sampling, samplesPerPrompt, pool });
  }
  return profiles;
}
