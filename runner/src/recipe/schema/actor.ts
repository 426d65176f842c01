import { z } from "zod";
import { fraction, key, keyWithoutDefault, path, plannedKey, positiveInteger, positiveNumber, section } from "./key.ts";

const adam = section("AdamW of the policy.", {
  lr: key(positiveNumber, 1e-6, { description: "Peak learning rate.", metrics: ["lr", "policy_kl"] }),
  betas: key(z.tuple([z.number().min(0).lt(1), z.number().min(0).lt(1)]), [0.9, 0.95], {
    description: "Decay of the first and second moment's running mean.",
  }),
  eps: key(positiveNumber, 1e-8, { description: "Added to the second moment's root before dividing." }),
  weight_decay: key(z.number().min(0), 0, { description: "Decoupled decay of matrices (norms are not decayed)." }),
});

export const actor = section("The policy that is trained, its optimizer and its loss.", {
  model_name_or_path: keyWithoutDefault(path, {
    description: "Hugging Face folder of the policy: config.json, tokenizer and, unless actor.init is random, weights.",
    path: "recipe",
  }),
  init: key(z.enum(["weights", "random"]), "weights", {
    description: "Whether the policy starts from the folder's weights or from random ones drawn from run.seed.",
  }),
  adam,
  lr_scheduler: key(z.enum(["constant", "linear", "cosine"]), "constant", {
    description: "Shape of the learning rate after its warm-up.",
    metrics: ["lr"],
  }),
  lr_warmup_ratio: key(fraction, 0.03, {
    description: "Part of all steps over which the learning rate rises from 0 to actor.adam.lr.",
    metrics: ["lr"],
  }),
  min_lr_ratio: key(fraction, 0.1, {
    description: "Floor that linear and cosine schedules end on, as a part of actor.adam.lr.",
    metrics: ["lr"],
  }),
  max_norm: key(positiveNumber, 1, {
    description: "Gradients are scaled down to this L2 norm.",
    metrics: ["policy_kl"],
  }),
  loss_mode: key(z.enum(["ppo"]), "ppo", { description: "Policy loss.", metrics: ["policy_loss", "clip_ratio"] }),
  eps_clip_low_high: key(z.tuple([z.number().gt(0).lt(1), positiveNumber]), [0.2, 0.2], {
    description: "How far below and above 1 the probability ratio counts in the loss.",
    metrics: ["clip_ratio"],
  }),
  dual_clip: key(z.number().gt(1).nullable(), null, {
    description: "Bound of the ratio for negative advantages; null is off.",
    metrics: ["clip_ratio"],
  }),
  entropy_coef: key(z.number().min(0), 0, {
    description: "Weight of the entropy bonus in the loss.",
    metrics: ["entropy"],
  }),
  devices_per_node: key(positiveInteger, 1, {
    description: "Ranks that shard the policy; a device is a GPU, or a CPU process.",
    unit: "ranks",
    metrics: ["train_seconds"],
  }),
  num_nodes: plannedKey(positiveInteger, 1, { description: "Machines that hold the policy's ranks.", unit: "nodes" }),
  gradient_checkpoint: key(z.enum(["full", "selective", "none"]), "full", {
    description:
      "What the backward pass computes again instead of keeping: every layer, the cheap parts, or nothing, which is " +
      "faster and takes more memory.",
    metrics: ["train_seconds"],
    plannedValues: ["selective"],
  }),
  optimizer: plannedKey(z.enum(["adamw", "muon"]), "adamw", {
    description: "What steps the weights: AdamW, or Muon for matrices.",
  }),
});
