import { type Rule, refuse, warn } from "./finding.ts";

export const correctionThreshold: Rule = ({ algo }) => {
  const [low, high] = algo.advantage.is_correction_threshold;
  if (low < high) return [];
  const key = "algo.advantage.is_correction_threshold";
  return refuse([key], `${key} must rise, not [${low}, ${high}]: try [0.5, 5]`);
};

/** Rows older than the policy need a correction. */
export const correctionOff: Rule = ({ algo, train }) => {
  const { max_staleness: staleness, updates_per_batch: updates } = train;
  if (algo.advantage.is_correction_level !== "off" || (staleness === 0 && updates === 1)) return [];
  const key = "algo.advantage.is_correction_level";
  const cause = staleness > 0 ? `train.max_staleness is ${staleness}` : `train.updates_per_batch is ${updates}`;
  const fix = `set it to token, or that to ${staleness > 0 ? 0 : 1}`;
  const message = `${key} off trains off-policy rows uncorrected, since ${cause}: ${fix}`;
  return refuse([key, "train.max_staleness", "train.updates_per_batch"], message);
};

/** Engine and policy round differently in bf16, so that even fresh rows are a little off-policy. */
export const correctionOffInBf16: Rule = ({ algo, fsdp, engine }) => {
  const rounding = fsdp.param_dtype === "bf16" ? "fsdp.param_dtype" : engine.dtype === "bf16" ? "engine.dtype" : null;
  if (algo.advantage.is_correction_level !== "off" || rounding === null) return [];
  const key = "algo.advantage.is_correction_level";
  const message = `${key} off leaves bf16's rounding uncorrected: set it to token, or ${rounding} to float32`;
  return refuse([key, rounding], message);
};

/** A weight of a whole sequence is kept or dropped; clipping it would bias every token alike. */
export const correctionMode: Rule = ({ algo }) => {
  const { is_correction_level: level, is_correction_mode: mode } = algo.advantage;
  if ((level !== "seq" && level !== "geo") || mode === "mask") return [];
  const key = "algo.advantage.is_correction_mode";
  return refuse([key, "algo.advantage.is_correction_level"], `${key} must be mask at level ${level}, not ${mode}`);
};

export const klEstimator: Rule = ({ algo }) => {
  if (algo.kl.init_coef === 0 || algo.kl.estimator !== "k1") return [];
  const message =
    "algo.kl.estimator k1 as a loss term has a gradient of mean zero, so it holds nothing back: take k2 or k3";
  return warn(["algo.kl.estimator", "algo.kl.init_coef"], message);
};

export const clipRange: Rule = ({ reward }) => {
  const [low, high] = reward.clip_range;
  if (low < high) return [];
  return refuse(["reward.clip_range"], `reward.clip_range must rise, not [${low}, ${high}]: try [-10, 10]`);
};
