import { needsCritic } from "../../algorithms/advantages/registry.ts";
import { type Guardrail, mendedBy } from "./finding.ts";

const estimator = "algo.advantage.estimator";
const filtering = "algo.dynamic_filtering";
const level = "algo.advantage.is_correction_level";
const mode = "algo.advantage.is_correction_mode";
const gating = "algo.advantage.is_correction_gating";
const threshold = "algo.advantage.is_correction_threshold";

/** A pair of bounds that is empty unless it rises. */
function rising(key: string, [low, high]: number[], usual: number[]) {
  if (low! < high!) return null;
  const message = `${key} must rise, not [${low}, ${high}]: try [${usual.join(", ")}]`;
  return mendedBy(key, usual, message);
}

export const correctionThreshold: Guardrail = {
  holds: "The correction's lowest ratio is below its highest, and a token's divergence is held against less than 1.",
  keys: [threshold, gating, level],
  check({ algo }) {
    const { is_correction_gating: gate, is_correction_threshold: bounds, is_correction_level: at } = algo.advantage;
    if (gate === "ratio") return rising(threshold, bounds, [0.5, 5]);
    if (bounds[1] < 1 || at === "seq" || at === "off") return null;
    const message = `${threshold} must end below 1 with ${gating} ${gate}, not at ${bounds[1]}: try [0.01, 0.05]`;
    return mendedBy(threshold, [0.01, 0.05], message);
  },
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
    return mendedBy(level, "token", message);
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
    return mendedBy(level, "token", message);
  },
};

export const correctionGating: Guardrail = {
  holds: "A divergence masks: it is no weight to clip.",
  keys: [mode, gating],
  check({ algo }) {
    const { is_correction_gating: gate, is_correction_mode: how } = algo.advantage;
    if (gate === "ratio" || how === "mask") return null;
    const message = `${mode} must be mask with ${gating} ${gate}, not ${how}`;
    return mendedBy(mode, "mask", message);
  },
};

export const klEstimator: Guardrail = {
  holds: "A KL term in the reward has the right gradient.",
  severity: "warning",
  keys: ["algo.kl.estimator", "algo.kl.use_loss", "algo.kl.init_coef"],
  check({ algo }) {
    const { init_coef: coef, use_loss: inLoss, estimator } = algo.kl;
    if (coef === 0 || inLoss || estimator === "k1") return null;
    const message = `algo.kl.estimator ${estimator} in the reward is not the gradient of the KL: take k1, or use_loss`;
    return mendedBy("algo.kl.estimator", "k1", message);
  },
};

export const referenceUnused: Guardrail = {
  holds: "A reference, or a target of the KL, is named only where there is a KL term.",
  severity: "warning",
  keys: ["ref.model_name_or_path", "algo.kl.target", "algo.kl.init_coef"],
  check({ ref, algo }) {
    const key = ref.model_name_or_path !== null ? "ref.model_name_or_path" : "algo.kl.target";
    if (algo.kl.init_coef > 0 || (ref.model_name_or_path === null && algo.kl.target === null)) return null;
    return `${key} does nothing while algo.kl.init_coef is 0: raise that, or leave this out`;
  },
};

export const criticUnused: Guardrail = {
  holds: "A critic is named, and waited for, only where the estimator reads its values.",
  severity: "warning",
  keys: ["critic.model_name_or_path", "actor.freezing_steps", estimator],
  check({ critic, actor, algo }) {
    const key = critic.model_name_or_path !== null ? "critic.model_name_or_path" : "actor.freezing_steps";
    const isNamed = critic.model_name_or_path !== null || actor.freezing_steps > 0;
    if (!isNamed || needsCritic(algo.advantage.estimator)) return null;
    return mendedBy(
      estimator,
      "gae",
      `${key} does nothing with ${estimator} ${algo.advantage.estimator}: gae reads it`,
    );
  },
};

export const freezingSteps: Guardrail = {
  holds: "The policy has steps left when the critic's are over.",
  keys: ["actor.freezing_steps", "run.steps", estimator],
  check({ actor: { freezing_steps: frozen }, run: { steps }, algo }) {
    if (steps === null || frozen < steps || !needsCritic(algo.advantage.estimator)) return null;
    const message = `actor.freezing_steps (${frozen}) must be below run.steps (${steps}): the policy is never trained`;
    return mendedBy("actor.freezing_steps", steps - 1, message);
  },
};

export const distillation: Guardrail = {
  holds: "on_policy_distill has a teacher, and takes the KL to it from the reward, of every group.",
  keys: [
    estimator,
    "ref.model_name_or_path",
    ...["init_coef", "use_loss", "estimator"].map((key) => `algo.kl.${key}`),
    filtering,
  ],
  check({ algo, ref }) {
    if (algo.advantage.estimator !== "on_policy_distill") return null;
    const { init_coef: coef, use_loss: inLoss, estimator: kind } = algo.kl;
    const needs = `${estimator} on_policy_distill needs`;
    const wrong = [
      ["algo.kl.init_coef", coef > 0, 1, "the KL to the teacher is all that it learns from"],
      ["algo.kl.use_loss", !inLoss, false, "the KL to the teacher is its reward"],
      ["algo.kl.estimator", kind === "k1", "k1", "the others have another gradient"],
      [filtering, algo.dynamic_filtering === "off", "off", "groups of equal rewards have a teacher too"],
    ] as const;
    const breaches = wrong
      .filter(([, isRight]) => !isRight)
      .map(([key, , value, why]) => mendedBy(key, value, `${needs} ${key} ${value}: ${why}`));
    const teacher = `${needs} ref.model_name_or_path: the teacher, a model with the policy's tokenizer`;
    return ref.model_name_or_path === null ? [teacher, ...breaches] : breaches;
  },
};

export const loraUnused: Guardrail = {
  holds: "An adapter's scale and places are set only where there are adapters.",
  severity: "warning",
  verbs: ["run", "sft"],
  keys: ["actor.lora.rank", "actor.lora.alpha", "actor.lora.target_modules"],
  check({ actor: { lora } }) {
    if (lora.rank > 0 || (lora.alpha === 32 && lora.target_modules.length === 7)) return null;
    const message = "actor.lora.rank 0 trains all weights, whatever else actor.lora says: try 16";
    return mendedBy("actor.lora.rank", 16, message);
  },
};

export const passK: Guardrail = {
  holds: "pass_k chooses its attempts among more rollouts of a group.",
  keys: ["algo.advantage.pass_k", "rollout.n_samples_per_prompt", "algo.advantage.estimator"],
  check({ algo, rollout }) {
    const { estimator, pass_k: k } = algo.advantage;
    const n = rollout.n_samples_per_prompt;
    if (estimator !== "pass_k" || k < n) return null;
    const message = `algo.advantage.pass_k (${k}) must be below rollout.n_samples_per_prompt (${n})`;
    return mendedBy("algo.advantage.pass_k", Math.max(n - 1, 1), message);
  },
};
