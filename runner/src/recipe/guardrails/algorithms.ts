import type { Guardrail } from "./finding.ts";

const level = "algo.advantage.is_correction_level";
const mode = "algo.advantage.is_correction_mode";
const threshold = "algo.advantage.is_correction_threshold";

/** A pair of bounds that is empty unless it rises. */
function rising(key: string, [low, high]: number[], usual: number[]) {
  if (low! < high!) return null;
  const message = `${key} must rise, not [${low}, ${high}]: try [${usual.join(", ")}]`;
  return { message, settings: [{ key, value: usual }] };
}

export const correctionThreshold: Guardrail = {
  holds: "The correction's lowest ratio is below its highest.",
  keys: [threshold],
  check: ({ algo }) => rising(threshold, algo.advantage.is_correction_threshold, [0.5, 5]),
};

export const clipRange: Guardrail = {
  holds: "The lowest reward is below the highest.",
  keys: ["reward.clip_range"],
  check: ({ reward }) => rising("reward.clip_range", reward.clip_range, [-10, 10]),
};

/** Rows older than the policy need a correction. */
export const correctionOff: Guardrail = {
  holds: "Off-policy rows are corrected.",
  keys: [level, "train.max_staleness", "train.updates_per_batch"],
  check({ algo, train }) {
    const { max_staleness: staleness, updates_per_batch: updates } = train;
    if (algo.advantage.is_correction_level !== "off" || (staleness === 0 && updates === 1)) return null;
    const cause = staleness > 0 ? `train.max_staleness is ${staleness}` : `train.updates_per_batch is ${updates}`;
    const fix = `set it to token, or that to ${staleness > 0 ? 0 : 1}`;
    const message = `${level} off trains off-policy rows uncorrected, since ${cause}: ${fix}`;
    return { message, settings: [{ key: level, value: "token" }] };
  },
};

/** Engine and policy round differently in bf16, so that even fresh rows are a little off-policy. */
export const correctionOffInBf16: Guardrail = {
  holds: "bf16's rounding is corrected.",
  keys: [level, "fsdp.param_dtype", "engine.dtype"],
  check({ algo, fsdp, engine }) {
    const rounding = fsdp.param_dtype === "bf16" ? "fsdp.param_dtype" : engine.dtype === "bf16" ? "engine.dtype" : null;
    if (algo.advantage.is_correction_level !== "off" || rounding === null) return null;
    const message = `${level} off leaves bf16's rounding uncorrected: set it to token, or ${rounding} to float32`;
    return { message, settings: [{ key: level, value: "token" }] };
  },
};

/** A weight of a whole sequence is kept or dropped; clipping it would bias every token alike. */
export const correctionMode: Guardrail = {
  holds: "A correction of whole sequences masks.",
  keys: [mode, level],
  check({ algo }) {
    const { is_correction_level: at, is_correction_mode: how } = algo.advantage;
    if ((at !== "seq" && at !== "geo") || how === "mask") return null;
    const message = `${mode} must be mask at level ${at}, not ${how}`;
    return { message, settings: [{ key: mode, value: "mask" }] };
  },
};

export const klEstimator: Guardrail = {
  holds: "The KL term's estimator has a gradient.",
  severity: "warning",
  keys: ["algo.kl.estimator", "algo.kl.init_coef"],
  check({ algo }) {
    if (algo.kl.init_coef === 0 || algo.kl.estimator !== "k1") return null;
    const message =
      "algo.kl.estimator k1 as a loss term has a gradient of mean zero, so it holds nothing back: take k2 or k3";
    return { message, settings: [{ key: "algo.kl.estimator", value: "k3" }] };
  },
};

export const referenceUnused: Guardrail = {
  holds: "A reference is named only where the KL term reads it.",
  severity: "warning",
  keys: ["ref.model_name_or_path", "algo.kl.init_coef"],
  check({ ref, algo }) {
    if (ref.model_name_or_path === null || algo.kl.init_coef > 0) return null;
    return "ref.model_name_or_path does nothing while algo.kl.init_coef is 0: raise that, or leave this out";
  },
};
