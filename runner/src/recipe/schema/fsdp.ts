import { z } from "zod";
import { key, optionalKey, plannedKey, positiveInteger, section } from "./key.ts";

export const fsdp = section("How the ranks hold and compute the models.", {
  param_dtype: key(z.enum(["float32", "bf16"]), "float32", "What matmuls compute in; weights stay float32.", {
    metrics: ["logprob_gap_mean", "train_seconds"],
  }),
  ep_size: key(positiveInteger, 1, "Ranks that a mixture's experts are spread over.", {
    unit: "ranks",
    metrics: ["train_seconds"],
  }),
  cp_size: key(positiveInteger, 1, "Ranks that share one sequence (context parallel).", {
    unit: "ranks",
    metrics: ["train_seconds"],
  }),
  defer_reduce: key(z.boolean(), false, "Reduces gradients once an update, not each microbatch: faster and larger.", {
    metrics: ["train_seconds"],
  }),
  reshard_after_forward: optionalKey(
    z.boolean(),
    "Gathers a layer's weights again for backward; null does unless actor.gradient_checkpoint is none.",
    { metrics: ["train_seconds"] },
  ),
  offload: plannedKey(z.enum(["none", "optimizer", "full"]), "none", "What waits in the host's memory."),
});
