import { join } from "node:path";
import { readModelFolder } from "../data/model-folder.ts";
import { Tokenizer } from "../data/tokenizer.ts";
import { usageError } from "../errors.ts";
import { readPrompts } from "../loop/train-run.ts";
import { readRecipe } from "../recipe/load.ts";
import type { Recipe } from "../recipe/schema.ts";
import { findRun } from "../telemetry/find-run.ts";

/** What verbs that look at tokens read of a run, which may be at work: they write nothing into it. */
export async function openRecordedRun(name: string) {
  const directory = findRun(name);
  const { recipe } = readRecipe(join(directory, "recipe.yaml"), {});
  const { path, eosTokenIds } = readModelFolder(recipe.actor.model_name_or_path, { weights: "none" });
  const tokenizer = await Tokenizer.load(path, { chatTemplate: recipe.data.chat_template, eosTokenIds });
  return { directory, recipe, tokenizer };
}

/** Says the row that a rollout's prompt came from. */
export async function readRows(recipe: Recipe) {
  const { rows: prompts, evalRows } = await readPrompts(recipe);
  const rows = new Map([...prompts, ...(evalRows ?? [])].map((row) => [row.id, row]));
  return (promptId: string) => {
    const row = rows.get(promptId);
    if (!row) throw usageError(`data.prompt_dataset has no row ${promptId} any more: labels come from there`);
    return row;
  };
}
