import { z } from "zod";
import { cadence, files, key, optionalKey, positiveInteger, section } from "./key.ts";

export const evaluation = section("Evaluation on held-out rows.", {
  dataset: optionalKey(files, "File of the held-out rows, or a list of such; null evaluates nothing.", {
    path: "recipe",
    metrics: ["accuracy", "prompts"],
  }),
  steps: key(cadence, -1, "Train steps between evaluations; -1 is before and after only.", { unit: "steps" }),
  temperature: key(z.number().min(0), 0, "Temperature of the evaluation; 0 is greedy.", { metrics: ["accuracy"] }),
  top_p: key(z.number().gt(0).max(1), 1, "Nucleus sampling of the evaluation.", { metrics: ["accuracy"] }),
  n_samples_per_prompt: key(positiveInteger, 1, "Rollouts of each held-out row.", { unit: "rollouts" }),
  pass_k: key(z.array(positiveInteger), [], "Attempts k of which one is to succeed: each gives pass@k.", {
    metrics: ["accuracy"],
  }),
  sampled: key(z.boolean(), true, "Also evaluates at rollout.temperature.", { metrics: ["sampled"] }),
  max_new_tokens: optionalKey(positiveInteger, "Longest reply of one turn; null takes rollout.max_new_tokens.", {
    unit: "tokens",
    metrics: ["accuracy"],
  }),
  engines: key(z.int().min(0), 0, "Engines that serve evaluations alone, while training goes on.", {
    unit: "engines",
    metrics: ["sync_seconds"],
  }),
  at_start: key(z.boolean(), true, "Evaluates before the first train step."),
});
