import { z } from "zod";
import { key, positiveNumber, section } from "./key.ts";

const advantage = section("Advantages and the correction for stale or mismatched sampling.", {
  estimator: key(z.enum(["reinforce_baseline", "grpo", "rloo"]), "reinforce_baseline", {
    description: "How rewards of a group become advantages.",
    metrics: ["advantage_mean", "policy_loss"],
  }),
  is_correction_level: key(z.enum(["token", "seq", "geo", "off"]), "token", {
    description: "Level at which trainer and sampler probabilities are compared for the importance correction.",
    metrics: ["correction_ratio"],
  }),
  is_correction_mode: key(z.enum(["mask", "clip", "trunc"]), "mask", {
    description:
      "What happens to a ratio outside the threshold: weight 0, clipped to both bounds, or capped from above.",
    metrics: ["correction_ratio"],
  }),
  is_correction_threshold: key(z.tuple([positiveNumber, positiveNumber]), [0.5, 5], {
    description: "Lowest and highest ratio that the correction accepts.",
    metrics: ["correction_ratio"],
  }),
});

const kl = section("The KL term against the reference policy.", {
  init_coef: key(z.number().min(0), 0, {
    description: "Weight of the KL term in the loss; 0 loads no reference.",
    metrics: ["kl", "policy_kl"],
  }),
  estimator: key(z.enum(["k1", "k2", "k3"]), "k3", {
    description: "Estimator of the KL divergence from samples.",
    metrics: ["kl"],
  }),
});

export const algo = section("Advantages, the KL term and filters.", {
  advantage,
  kl,
  dynamic_filtering: key(z.enum(["off", "drop"]), "off", {
    description: "drop leaves groups whose rewards are all equal out of the loss.",
    metrics: ["tokens_trained"],
  }),
});
