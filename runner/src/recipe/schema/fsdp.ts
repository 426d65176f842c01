import { z } from "zod";
import { key, plannedKey, positiveInteger, section } from "./key.ts";

export const fsdp = section("How the ranks hold and compute the models.", {
  param_dtype: key(z.enum(["float32", "bf16"]), "float32", "What matmuls compute in; weights stay float32.", {
    metrics: ["logprob_gap_mean", "train_seconds"],
  }),
  ep_size: plannedKey(positiveInteger, 1, "Ranks that a mixture's experts are spread over.", { unit: "ranks" }),
  cp_size: plannedKey(positiveInteger, 1, "Ranks that share one sequence (context parallel).", {
    unit: "ranks",
  }),
  defer_reduce: plannedKey(z.boolean(), false, "Reduces gradients once an update, not each microbatch."),
  reshard_after_forward: plannedKey(z.boolean(), true, "Gathers a layer's weights again for the backward pass."),
  offload: plannedKey(z.enum(["none", "optimizer", "full"]), "none", "What waits in the host's memory."),
});
