import { z } from "zod";
import { cadence, key, optionalKey, path, positiveInteger, positiveNumber, section } from "./key.ts";

export const ckpt = section("Checkpoints and the exported model.", {
  save_steps: key(cadence, 10, "Steps between checkpoints; -1 writes one at the end.", { unit: "steps" }),
  max_num: key(positiveInteger, 3, "Checkpoints kept; older ones are removed.", { unit: "checkpoints" }),
  max_mem: optionalKey(positiveNumber, "Disk for all but the newest checkpoint; null sets no bound.", { unit: "GB" }),
  best_metric_key: key(
    z.string().min(1).nullable(),
    "auto",
    "Metric of evals whose best checkpoint stays; auto: accuracy, in sft loss; null keeps none.",
  ),
  output_dir: optionalKey(path, "Folder that the exported model is also copied to.", { path: "recipe" }),
});
