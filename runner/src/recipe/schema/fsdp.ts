import { z } from "zod";
import { key, section } from "./key.ts";

export const fsdp = section("How the ranks hold and compute the models.", {
  param_dtype: key(z.enum(["float32", "bf16"]), "float32", {
    description:
      "What matmuls and attention compute in. Weights, gradients and the optimizer stay float32; bf16 is faster, and " +
      "rounds log-probabilities by a few hundredths.",
  }),
});
