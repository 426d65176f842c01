import { type ModelFolder, readModelFolder } from "../data/model-folder.ts";
import type { Recipe } from "../recipe/index.ts";
import type { InitParams, LossSpec, ModelSpec } from "./protocol.ts";
import type { ScheduleSpec } from "./schedule.ts";

/** What the ranks are started with, from a recipe. */
export function rankInit(recipe: Recipe, folder: ModelFolder, loss: LossSpec): Omit<InitParams, "worldSize" | "store"> {
  const { adam, max_norm: maxNorm } = recipe.actor;
  return {
    policy: modelSpec(recipe, folder, recipe.actor.init === "weights"),
    ref: loss.kl.coef > 0 ? referenceSpec(recipe, folder) : null,
    optimizer: { betas: adam.betas, eps: adam.eps, weightDecay: adam.weight_decay, maxNorm },
    loss,
    threads: 1,
  };
}

export function readPolicyFolder({ actor }: Recipe): ModelFolder {
  return readModelFolder(actor.model_name_or_path, { weights: actor.init === "weights" ? "required" : "none" });
}

export function policyLoss({ actor, algo }: Recipe): LossSpec {
  const { is_correction_level: level, is_correction_mode: mode, is_correction_threshold: threshold } = algo.advantage;
  return {
    name: actor.loss_mode,
    epsClip: actor.eps_clip_low_high,
    dualClip: actor.dual_clip,
    entropyCoef: actor.entropy_coef,
    kl: { coef: algo.kl.init_coef, estimator: algo.kl.estimator },
    correction: { level, mode, threshold },
  };
}

/** Minus log-probability; nothing else of a policy loss applies to what was not sampled. */
export function sftLoss(recipe: Recipe): LossSpec {
  const { kl, correction, ...loss } = policyLoss(recipe);
  return { ...loss, name: "sft", entropyCoef: 0, kl: { ...kl, coef: 0 }, correction: { ...correction, level: "off" } };
}

export function schedule({ actor }: Recipe, totalUpdates: number): ScheduleSpec {
  return {
    learningRate: actor.adam.lr,
    scheduler: actor.lr_scheduler,
    warmupRatio: actor.lr_warmup_ratio,
    minLrRatio: actor.min_lr_ratio,
    totalUpdates,
  };
}

function referenceSpec(recipe: Recipe, policy: ModelFolder): ModelSpec {
  const { ref, actor } = recipe;
  const path = ref.model_name_or_path;
  if (path === null || path === actor.model_name_or_path) return modelSpec(recipe, policy, actor.init === "weights");
  return modelSpec(recipe, readModelFolder(path, { weights: "required" }), true);
}

function modelSpec({ run, fsdp }: Recipe, { decoder, tensors }: ModelFolder, trained: boolean): ModelSpec {
  const { config, units } = decoder;
  const dtype = fsdp.param_dtype === "bf16" ? "bfloat16" : "float32";
  return { config, units, weights: trained ? tensors : null, seed: run.seed, dtype };
}
