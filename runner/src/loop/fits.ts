import { adaptUnits } from "../data/adapters.ts";
import { usageError } from "../errors.ts";
import type { Recipe } from "../recipe/index.ts";
import { isOfModel, shardPath } from "../trainer/shard-file.ts";
import { readPolicyFolder } from "../trainer/specs.ts";
import type { Checkpoint } from "./checkpoint.ts";
import { readPrompts } from "./train-run.ts";

/** Before anything starts: one error with every key under which the checkpoint cannot go on, and why. */
export async function checkFits(recipe: Recipe, { directory, state }: Checkpoint): Promise<void> {
  const { data, run } = recipe;
  const { prompts, datasetFingerprint, step } = state;
  const isOther = {
    "actor.model_name_or_path, actor.lora: its weights are of a model with other parameters": !isOfModel(
      shardPath(directory, 0),
      adaptUnits(readPolicyFolder(recipe).decoder.units, recipe),
    ),
    [`run.seed: its prompts are in the order of seed ${prompts.seed}`]: run.seed !== prompts.seed,
    [`data: ${data.prompt_dataset} changed since it was written, or how rows are taken from it`]:
      (await readPrompts(recipe)).fingerprint !== datasetFingerprint,
  };
  const reasons = Object.keys(isOther).filter((reason) => isOther[reason]);
  if (reasons.length === 0) return;
  throw usageError(`the checkpoint of step ${step} does not load under this recipe: ${reasons.join("; ")}`, {
    fix: "leave these as they were, or start a new run from the exported model",
  });
}
