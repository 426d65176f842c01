import { z } from "zod";
import { key, path, positiveInteger, positiveNumber, section } from "./key.ts";

const column = z.string().min(1);

export const data = section("The dataset and how its rows become prompts.", {
  prompt_dataset: key(z.union([path, z.array(path).min(1)]).nullable(), null, {
    description: "JSONL, JSON, CSV or Parquet file of the training rows, or a list of such; run and sft need it.",
    path: "recipe",
  }),
  prompt_probs: key(z.array(positiveNumber).min(1).nullable(), null, {
    description:
      "Weight of each file of data.prompt_dataset in the order within an epoch: nothing is repeated or left out, so " +
      "when a file is used up the others go on; null shuffles all rows together.",
  }),
  input_key: key(column, "input", { description: "Column of the prompt: a string or a list of chat messages." }),
  label_key: key(column.nullable(), null, { description: "Column handed to the agent as the row's label." }),
  output_key: key(column.nullable(), null, { description: "Column of the reply that sft trains on." }),
  max_len: key(z.int().min(2), 2048, {
    description: "Longest sequence, prompt and replies together.",
    unit: "tokens",
    metrics: ["response_length", "stop/context"],
  }),
  mean_len: key(positiveNumber.nullable(), null, {
    description: "Mean length of a row, prompt and replies, that plan reckons with; null is 0.6 of data.max_len.",
    unit: "tokens",
  }),
  max_samples: key(positiveInteger.nullable(), null, {
    description: "Only the first rows of each file are taken, this many; null takes all.",
    unit: "rows",
  }),
  epochs: key(positiveInteger, 1, { description: "Passes over the dataset when run.steps is null.", unit: "passes" }),
  chat_template: key(path.nullable(), null, {
    description: "Jinja file used in place of the tokenizer's chat template.",
    path: "recipe",
  }),
});
