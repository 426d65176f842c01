import { advantageEstimators, needsCritic } from "../algorithms/advantages/registry.ts";
import { adaptUnits } from "../data/adapters.ts";
import { asCritic } from "../data/decoder.ts";
import { type ModelFolder, readModelFolder } from "../data/model-folder.ts";
import type { Recipe } from "../recipe/index.ts";
import { loadAlgorithm } from "./load-algorithm.ts";
import type { CriticParams, InitParams, LossSpec, ModelSpec, OptimizerSpec } from "./protocol.ts";
import { learningRates } from "./schedule.ts";
import type { TrainSettings } from "./train-batch.ts";

export function rankInit(recipe: Recipe, folder: ModelFolder, loss: LossSpec): Omit<InitParams, "worldSize" | "store"> {
  const hasCritic = needsCritic(recipe.algo.advantage.estimator) && loss.name !== "sft";
  const { cp_size: contextSize, ep_size: expertSize } = recipe.fsdp;
  return {
    mesh: { contextSize, expertSize },
    policy: { ...modelSpec(recipe, folder), units: adaptUnits(folder.decoder.units, recipe) },
    ref: loss.kl.coef > 0 ? referenceSpec(recipe, folder) : null,
    optimizer: optimizerSpec(recipe.actor),
    critic: hasCritic ? criticParams(recipe, folder) : null,
    loss,
    mixture: { balanceCoef: recipe.actor.aux_loss_coef, replaysRoutes: recipe.train.routing_replay },
  };
}

export function readPolicyFolder({ actor }: Recipe): ModelFolder {
  return readModelFolder(actor.model_name_or_path, { weights: actor.init === "weights" ? "required" : "none" });
}

export function policyLoss({ actor, algo }: Recipe): LossSpec {
  const { advantage, kl } = algo;
  return {
    name: actor.loss_mode,
    epsClip: actor.eps_clip_low_high,
    dualClip: actor.dual_clip,
    entropyCoef: actor.entropy_coef,
    kl: { coef: kl.init_coef, estimator: kl.estimator, inReward: !kl.use_loss },
    correction: {
      level: advantage.is_correction_level,
      mode: advantage.is_correction_mode,
      gate: advantage.is_correction_gating,
      threshold: advantage.is_correction_threshold,
    },
  };
}

/** What every batch of a run is trained with; a file of the recipe's is loaded here. */
export async function trainSettings(recipe: Recipe, totalUpdates: number): Promise<TrainSettings> {
  const { algo, train } = recipe;
  return {
    recipe,
    estimate: await loadAlgorithm(advantageEstimators, algo.advantage.estimator, "algo.advantage.estimator"),
    klCoef: algo.kl.init_coef,
    maxTokensPerDevice: train.max_tokens_per_device,
    ...schedules(recipe, totalUpdates),
  };
}

/** The policy's begins when it has stood still for `actor.freezing_steps`. */
function schedules({ algo, actor, critic, train }: Recipe, totalUpdates: number) {
  if (!needsCritic(algo.advantage.estimator)) return { schedule: learningRates(actor, totalUpdates) };
  const frozen = actor.freezing_steps * train.updates_per_batch;
  const rates = learningRates(actor, totalUpdates - frozen);
  const schedule = (done: number) => (done < frozen ? null : rates(done - frozen));
  return { schedule, criticSchedule: learningRates(critic, totalUpdates) };
}

/** Minus log-probability; what was not sampled needs nothing else. */
export function sftLoss(recipe: Recipe): LossSpec {
  const { kl, correction, ...loss } = policyLoss(recipe);
  return { ...loss, name: "sft", entropyCoef: 0, kl: { ...kl, coef: 0 }, correction: { ...correction, level: "off" } };
}

function referenceSpec(recipe: Recipe, policy: ModelFolder): ModelSpec | "base" {
  const path = recipe.ref.model_name_or_path;
  const isOther = path !== null && path !== recipe.actor.model_name_or_path;
  if (!isOther && recipe.actor.lora.rank > 0) return "base";
  return modelSpec(recipe, isOther ? readModelFolder(path, { weights: "required" }) : policy);
}

function criticParams(recipe: Recipe, policy: ModelFolder): CriticParams {
  const { model_name_or_path: path } = recipe.critic;
  const folder = path === null ? policy : readModelFolder(path, { weights: "required" });
  return {
    model: { ...modelSpec(recipe, folder), ...asCritic(folder.decoder) },
    optimizer: optimizerSpec(recipe.critic),
    valueClip: recipe.critic.value_clip,
  };
}

function optimizerSpec({ adam, max_norm: maxNorm }: Recipe["actor" | "critic"]): OptimizerSpec {
  return { betas: adam.betas, eps: adam.eps, weightDecay: adam.weight_decay, maxNorm };
}

function modelSpec({ run, fsdp, actor }: Recipe, { decoder, tensors }: ModelFolder): ModelSpec {
  const { config, units } = decoder;
  const dtype = fsdp.param_dtype === "bf16" ? "bfloat16" : "float32";
  return {
    config,
    units,
    weights: tensors.length > 0 ? tensors : null,
    seed: run.seed,
    dtype,
    gradientCheckpoint: actor.gradient_checkpoint,
    reshardAfterForward: fsdp.reshard_after_forward ?? actor.gradient_checkpoint !== "none",
    deferReduce: fsdp.defer_reduce,
    freezeRouter: actor.freeze_moe_router,
  };
}
