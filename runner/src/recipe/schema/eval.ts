import { z } from "zod";
import { key, path, positiveInteger, section } from "./key.ts";

export const evaluation = section("Evaluation on held-out rows.", {
  dataset: key(path.nullable(), null, {
    description: "JSONL, JSON, CSV or Parquet file of the held-out rows; null evaluates nothing.",
    path: "recipe",
    metrics: ["accuracy", "prompts"],
  }),
  steps: key(z.union([z.literal(-1), positiveInteger]), -1, {
    description: "Train steps between evaluations; -1 evaluates only before and after.",
    unit: "steps",
  }),
  temperature: key(z.number().min(0), 0, {
    description: "Temperature of the evaluation; 0 is greedy.",
    metrics: ["accuracy"],
  }),
  top_p: key(z.number().gt(0).max(1), 1, { description: "Nucleus sampling of the evaluation.", metrics: ["accuracy"] }),
  n_samples_per_prompt: key(positiveInteger, 1, { description: "Rollouts of each held-out row.", unit: "rollouts" }),
  sampled: key(z.boolean(), true, { description: "Also evaluates at rollout.temperature.", metrics: ["sampled"] }),
  max_new_tokens: key(positiveInteger.nullable(), null, {
    description: "Longest reply of one turn; null takes rollout.max_new_tokens.",
    unit: "tokens",
    metrics: ["accuracy"],
  }),
  at_start: key(z.boolean(), true, { description: "Evaluates before the first train step." }),
});
