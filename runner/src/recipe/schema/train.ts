import { z } from "zod";
import { key, path, positiveInteger, section } from "./key.ts";

export const train = section("The agent and the train step.", {
  agent_path: key(path.nullable(), null, {
    description: "TypeScript or JavaScript file whose default export is the agent's class; run and eval need it.",
    path: "recipe",
  }),
  max_staleness: key(z.int().min(0), 1, {
    description: "Policy versions that a row may lag when it is trained; 0 is strictly on-policy.",
    unit: "versions",
  }),
  partial_rollout: key(z.enum(["wait"]), "wait", {
    description: "What a weight sync does to running requests: wait lets them finish first.",
  }),
  updates_per_batch: key(positiveInteger, 1, {
    description: "Optimizer steps that a batch of groups is cut into.",
    unit: "updates",
  }),
  max_tokens_per_device: key(positiveInteger, 16384, {
    description: "Hard cap of a microbatch on one device.",
    unit: "tokens",
  }),
  batch_size: key(positiveInteger, 64, { description: "Rows of one optimizer step of sft.", unit: "rows" }),
  stop_after_skipped: key(positiveInteger, 10, {
    description: "Skipped steps in a row that stop the run.",
    unit: "steps",
  }),
});
