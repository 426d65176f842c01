import { z } from "zod";
import { key, path, positiveInteger, section } from "./key.ts";

const column = z.string().min(1);

export const data = section("The dataset and how its rows become prompts.", {
  prompt_dataset: key(path.nullable(), null, {
    description: "JSONL or JSON file of the training rows; run and sft need it.",
    path: "recipe",
  }),
  input_key: key(column, "input", { description: "Column of the prompt: a string or a list of chat messages." }),
  label_key: key(column.nullable(), null, { description: "Column handed to the agent as the row's label." }),
  output_key: key(column.nullable(), null, { description: "Column of the reply that sft trains on." }),
  max_len: key(z.int().min(2), 2048, {
    description: "Longest sequence, prompt and replies together.",
    unit: "tokens",
  }),
  max_samples: key(positiveInteger.nullable(), null, {
    description: "Only the file's first rows are taken, this many; null takes all.",
    unit: "rows",
  }),
  epochs: key(positiveInteger, 1, { description: "Passes over the dataset when run.steps is null.", unit: "passes" }),
  chat_template: key(path.nullable(), null, {
    description: "Jinja file used in place of the tokenizer's chat template.",
    path: "recipe",
  }),
});
