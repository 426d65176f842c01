import { z } from "zod";
import { type Aggregation, aggregations } from "../../algorithms/aggregation.ts";
import { policyLosses } from "../../algorithms/losses/registry.ts";
import {
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
import { optimizerKeys } from "./optimizer.ts";

const losses = Object.keys(policyLosses).filter((name) => name !== "sft");
const aggregation = z.enum(Object.keys(aggregations) as [Aggregation]);
const clipRange = z.tuple([z.number().gt(0).lt(1), positiveNumber]);
const checkpointing = z.enum(["full", "selective", "none"]);

const projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] as const;

const lora = section("Low-rank adapters (LoRA), which are trained in place of the policy's weights.", {
  rank: key(z.int().min(0), 0, "Rank of each adapter; 0 has none and trains all weights."),
  alpha: key(positiveNumber, 32, "An adapter's product is scaled by this over its rank.", { metrics: ["policy_kl"] }),
  target_modules: key(z.array(z.enum(projections)).min(1), [...projections], "Projections that get an adapter."),
});

export const actor = section("The policy that is trained, its optimizer and its loss.", {
  model_name_or_path: keyWithoutDefault(path, "Hugging Face folder of the policy: config.json, tokenizer, weights.", {
    path: "recipe",
  }),
  init: key(z.enum(["weights", "random"]), "weights", "Starts from the folder's weights, or random ones of run.seed."),
  lora,
  ...optimizerKeys("actor", "policy", 1e-6),
  freezing_steps: key(z.int().min(0), 0, "First steps in which the critic alone is trained.", {
    unit: "steps",
    metrics: ["explained_variance", "policy_kl"],
  }),
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
  aux_loss_coef: key(z.number().min(0), 0, "Weight of a mixture's balance loss, of each sequence by its tokens.", {
    metrics: ["balance_loss"],
  }),
  freeze_moe_router: key(z.boolean(), false, "A mixture's routers keep their weights."),
  devices_per_node: key(positiveInteger, 1, "Ranks that shard the policy; a device is a GPU, or a CPU process.", {
    unit: "ranks",
    metrics: ["train_seconds"],
  }),
  num_nodes: key(positiveInteger, 1, "Machines that hold the policy's ranks.", { unit: "nodes" }),
  start_timeout: key(positiveNumber, 600, "Deadline of the ranks' start, reading the weights included.", {
    unit: "seconds",
  }),
  request_timeout: key(positiveNumber, 600, "Deadline of what ranks do at one request: an update, an export.", {
    unit: "seconds",
  }),
  gradient_checkpoint: key(checkpointing, "full", "What backward computes again: all, cheap parts, or nothing.", {
    metrics: ["train_seconds"],
  }),
  optimizer: plannedKey(z.enum(["adamw", "muon"]), "adamw", "What steps the weights: AdamW, or Muon for matrices."),
});
