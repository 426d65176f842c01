import { z } from "zod";
import { type Aggregation, aggregations } from "../../algorithms/aggregation.ts";
import { policyLosses } from "../../algorithms/losses/registry.ts";
import {
  fraction,
  key,
  keyWithoutDefault,
  nameOrFile,
  optionalKey,
  path,
  plannedKey,
  positiveInteger,
  positiveNumber,
  section,
} from "./key.ts";

const decay = z.number().min(0).lt(1);
const losses = Object.keys(policyLosses).filter((name) => name !== "sft");
const aggregation = z.enum(Object.keys(aggregations) as [Aggregation]);
const clipRange = z.tuple([z.number().gt(0).lt(1), positiveNumber]);
const checkpointing = z.enum(["full", "selective", "none"]);

const adam = section("AdamW of the policy.", {
  lr: key(positiveNumber, 1e-6, "Peak learning rate.", { metrics: ["lr", "policy_kl"] }),
  betas: key(z.tuple([decay, decay]), [0.9, 0.95], "Decay of the first and second moment's running mean."),
  eps: key(positiveNumber, 1e-8, "Added to the second moment's root before dividing."),
  weight_decay: key(z.number().min(0), 0, "Decoupled decay of matrices (norms are not decayed)."),
});

export const actor = section("The policy that is trained, its optimizer and its loss.", {
  model_name_or_path: keyWithoutDefault(path, "Hugging Face folder of the policy: config.json, tokenizer, weights.", {
    path: "recipe",
  }),
  init: key(z.enum(["weights", "random"]), "weights", "Starts from the folder's weights, or random ones of run.seed."),
  adam,
  lr_scheduler: key(z.enum(["constant", "linear", "cosine"]), "constant", "Learning rate after its warm-up.", {
    metrics: ["lr"],
  }),
  lr_warmup_ratio: key(fraction, 0.03, "Part of the steps in which the learning rate rises from 0.", {
    metrics: ["lr"],
  }),
  min_lr_ratio: key(fraction, 0.1, "Where linear and cosine end, as a part of actor.adam.lr.", {
    metrics: ["lr"],
  }),
  max_norm: key(positiveNumber, 1, "Gradients are scaled down to this L2 norm.", { metrics: ["policy_kl"] }),
  loss_mode: key(nameOrFile(losses), "ppo", "Policy loss; or a TypeScript file whose default export is one.", {
    file: true,
    metrics: ["policy_loss", "clip_ratio"],
  }),
  loss_agg_mode: key(aggregation, "token-mean", "What counts alike in a loss: each token, rollout or prompt.", {
    metrics: ["policy_loss", "response_length"],
  }),
  eps_clip_low_high: key(clipRange, [0.2, 0.2], "How far below and above 1 the probability ratio counts in the loss.", {
    metrics: ["clip_ratio"],
  }),
  dual_clip: optionalKey(z.number().gt(1), "Bound of the ratio for negative advantages; null is off.", {
    metrics: ["clip_ratio"],
  }),
  entropy_coef: key(z.number().min(0), 0, "Weight of the entropy bonus in the loss.", { metrics: ["entropy"] }),
  devices_per_node: key(positiveInteger, 1, "Ranks that shard the policy; a device is a GPU, or a CPU process.", {
    unit: "ranks",
    metrics: ["train_seconds"],
  }),
  num_nodes: plannedKey(positiveInteger, 1, "Machines that hold the policy's ranks.", { unit: "nodes" }),
  gradient_checkpoint: key(checkpointing, "full", "What backward computes again: all, cheap parts, or nothing.", {
    metrics: ["train_seconds"],
    plannedValues: ["selective"],
  }),
  optimizer: plannedKey(z.enum(["adamw", "muon"]), "adamw", "What steps the weights: AdamW, or Muon for matrices."),
});
