import { z } from "zod";
import { key, plannedKey, positiveInteger, section } from "./key.ts";

export const fsdp = section("How the ranks hold and compute the models.", {
  param_dtype: key(z.enum(["float32", "bf16"]), "float32", {
    description:
      "What matmuls and attention compute in. Weights, gradients and the optimizer stay float32; bf16 is faster, and " +
      "rounds log-probabilities by a few hundredths.",
    metrics: ["logprob_gap_mean", "train_seconds"],
  }),
  ep_size: plannedKey(positiveInteger, 1, {
    description: "Ranks that a mixture's experts are spread over.",
    unit: "ranks",
  }),
  cp_size: plannedKey(positiveInteger, 1, {
    description: "Ranks that share the tokens of one sequence (context parallel).",
    unit: "ranks",
  }),
  defer_reduce: plannedKey(z.boolean(), false, {
    description: "Reduces gradients once an update instead of once a microbatch, for a whole gradient's memory.",
  }),
  reshard_after_forward: plannedKey(z.boolean(), true, {
    description:
      "Frees a layer's gathered weights after its forward pass and gathers them again for the backward pass.",
  }),
  offload: plannedKey(z.enum(["none", "optimizer", "full"]), "none", {
    description: "What waits in the host's memory: nothing, the optimizer's state, or weights and gradients too.",
  }),
});
