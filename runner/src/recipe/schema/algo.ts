import { z } from "zod";
import { advantageEstimators } from "../../algorithms/advantages/registry.ts";
import { fraction, key, nameOrFile, optionalKey, positiveInteger, positiveNumber, section } from "./key.ts";

const levels = z.enum(["token", "seq", "geo", "off"]);
const modes = z.enum(["mask", "clip", "trunc"]);
const bounds = z.tuple([positiveNumber, positiveNumber]);
const gates = z.enum(["ratio", "binary_kl", "tv"]);

const advantage = section("Advantages and the correction for stale or mismatched sampling.", {
  estimator: key(nameOrFile(Object.keys(advantageEstimators)), "reinforce_baseline", "How rewards become advantages.", {
    file: true,
    metrics: ["advantage_mean", "policy_loss"],
  }),
  no_whiten: key(z.boolean(), false, "Estimators that divide by the deviation over the batch do not.", {
    metrics: ["advantage_mean", "grad_norm"],
  }),
  gamma: key(fraction, 1, "Discount from a turn to the next, of reinforce and turn_credit; of gae from a token.", {
    metrics: ["advantage_mean"],
  }),
  lam: key(fraction, 1, "Lambda of gae: 1 takes what came for a token, 0 what the critic expects after it.", {
    metrics: ["advantage_mean", "value_loss"],
  }),
  pass_k: key(positiveInteger, 4, "Attempts of which pass_k wants one to succeed.", {
    unit: "rollouts",
    metrics: ["advantage_mean", "entropy"],
  }),
  length_alpha: key(fraction, 0, "Advantages are weighted by the rollout's trained tokens to minus this power.", {
    metrics: ["advantage_mean", "response_length"],
  }),
  clip: optionalKey(positiveNumber, "Largest advantage in absolute value, after everything else; null is off.", {
    metrics: ["advantage_mean", "grad_norm"],
  }),
  is_correction_level: key(levels, "token", "Level at which trainer's and sampler's probabilities are compared.", {
    metrics: ["correction_ratio"],
  }),
  is_correction_mode: key(modes, "mask", "A ratio outside the threshold is dropped, clipped, or capped from above.", {
    metrics: ["correction_ratio"],
  }),
  is_correction_gating: key(gates, "ratio", "What the threshold bounds: the ratio, or a divergence.", {
    metrics: ["correction_ratio"],
  }),
  is_correction_threshold: key(bounds, [0.5, 5], "Lowest and highest ratio; of a divergence the highest alone.", {
    metrics: ["correction_ratio"],
  }),
});

const kl = section("The KL term against the reference policy.", {
  init_coef: key(z.number().min(0), 0, "Weight of the KL term, at first; 0 loads no reference.", {
    metrics: ["kl", "policy_kl"],
  }),
  use_loss: key(z.boolean(), true, "The KL term is part of the loss; else each turn's is taken off its reward.", {
    metrics: ["kl"],
  }),
  target: optionalKey(positiveNumber, "KL that the coefficient is steered to after each step; null keeps it.", {
    unit: "nats a token",
    metrics: ["kl", "kl_coef"],
  }),
  horizon: key(positiveNumber, 10_000, "Rollouts in which the coefficient may change by a fifth.", {
    unit: "rollouts",
    metrics: ["kl_coef"],
  }),
  estimator: key(z.enum(["k1", "k2", "k3"]), "k3", "Estimator of the KL divergence from samples.", {
    metrics: ["kl"],
  }),
});

export const algo = section("Advantages, the KL term and filters.", {
  advantage,
  kl,
  dynamic_filtering: key(z.enum(["off", "drop", "refill"]), "off", "What becomes of groups of equal rewards.", {
    metrics: ["tokens_trained", "groups_without_signal"],
  }),
  refill_budget: key(positiveNumber, 2, "Groups that refill may replace in a step, in parts of a batch.", {
    metrics: ["groups_refilled"],
  }),
});
