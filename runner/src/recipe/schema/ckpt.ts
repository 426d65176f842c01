import { z } from "zod";
import { key, path, positiveInteger, section } from "./key.ts";

export const ckpt = section("Checkpoints and the exported model.", {
  save_steps: key(z.union([z.literal(-1), positiveInteger]), 10, {
    description: "Steps between checkpoints; -1 writes one only at the end.",
    unit: "steps",
  }),
  max_num: key(positiveInteger, 3, { description: "Checkpoints kept; older ones are removed.", unit: "checkpoints" }),
  output_dir: key(path.nullable(), null, {
    description: "Folder that the exported model is also copied to; null keeps it in the run directory only.",
    path: "recipe",
  }),
});
