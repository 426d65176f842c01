import { z } from "zod";
import { key, optionalKey, path, positiveInteger, section } from "./key.ts";

const words = z.array(z.string().min(1)).min(1);

export const train = section("The agent and the train step.", {
  agent_path: optionalKey(path, "TypeScript or JavaScript file whose default export is the agent's class.", {
    path: "recipe",
  }),
  agent_command: optionalKey(words, "Words of a command in place of agent_path, started for each rollout.", {
    command: true,
  }),
  grader_command: optionalKey(words, "Command that says the reward; null takes the agent's last line.", {
    command: true,
  }),
  max_staleness: key(z.int().min(0), 1, "Policy versions that a row may lag; 0 is strictly on-policy.", {
    unit: "versions",
    metrics: ["staleness_mean", "staleness_max", "live_groups"],
  }),
  partial_rollout: key(z.enum(["resume", "wait", "keep"]), "resume", "What a weight sync does to running requests.", {
    metrics: ["sync_seconds", "staleness_mean"],
  }),
  routing_replay: key(z.boolean(), false, "Trains a mixture's tokens through the experts that they were sampled by.", {
    metrics: ["route_mismatch", "logprob_gap_mean", "logprob_gap_live"],
  }),
  updates_per_batch: key(positiveInteger, 1, "Optimizer steps that a batch of groups is cut into.", {
    unit: "updates",
    metrics: ["ratio_gap_max", "policy_kl", "clip_ratio"],
  }),
  max_tokens_per_device: key(positiveInteger, 16384, "Hard cap of a microbatch on one device.", {
    unit: "tokens",
    metrics: ["train_seconds"],
  }),
  batch_size: key(positiveInteger, 64, "Rows of one optimizer step of sft.", {
    unit: "rows",
    metrics: ["rows", "tokens_trained"],
  }),
  stop_after_skipped: key(positiveInteger, 10, "Skipped steps in a row that stop the run.", { unit: "steps" }),
});
