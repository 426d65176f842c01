import { z } from "zod";
import { key, path, positiveInteger, section } from "./key.ts";

const words = z.array(z.string().min(1)).min(1);

export const train = section("The agent and the train step.", {
  agent_path: key(path.nullable(), null, {
    description: "TypeScript or JavaScript file whose default export is the agent's class; run and eval need an agent.",
    path: "recipe",
  }),
  agent_command: key(words.nullable(), null, {
    description:
      "In place of train.agent_path: the words of a command that is started for each rollout, the row as JSON on its " +
      "standard input; words that begin with ./ or ../ are paths.",
    command: true,
  }),
  grader_command: key(words.nullable(), null, {
    description: "Command that says the reward of what train.agent_command did; null takes the agent's own last line.",
    command: true,
  }),
  max_staleness: key(z.int().min(0), 1, {
    description: "Policy versions that a row may lag when it is trained; 0 is strictly on-policy.",
    unit: "versions",
    metrics: ["staleness_mean", "staleness_max", "live_groups"],
  }),
  partial_rollout: key(z.enum(["wait"]), "wait", {
    description: "What a weight sync does to running requests: wait lets them finish first.",
  }),
  updates_per_batch: key(positiveInteger, 1, {
    description: "Optimizer steps that a batch of groups is cut into.",
    unit: "updates",
    metrics: ["ratio_gap_max", "policy_kl", "clip_ratio"],
  }),
  max_tokens_per_device: key(positiveInteger, 16384, {
    description: "Hard cap of a microbatch on one device.",
    unit: "tokens",
    metrics: ["train_seconds"],
  }),
  batch_size: key(positiveInteger, 64, {
    description: "Rows of one optimizer step of sft.",
    unit: "rows",
    metrics: ["rows", "tokens_trained"],
  }),
  stop_after_skipped: key(positiveInteger, 10, {
    description: "Skipped steps in a row that stop the run.",
    unit: "steps",
  }),
});
