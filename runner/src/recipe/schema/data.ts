import { z } from "zod";
import { key, optionalKey, path, positiveInteger, positiveNumber, section } from "./key.ts";

const column = z.string().min(1);
const files = z.union([path, z.array(path).min(1)]);

export const data = section("The dataset and how its rows become prompts.", {
  prompt_dataset: optionalKey(files, "JSONL, JSON, CSV or Parquet file of the training rows, or a list of such.", {
    path: "recipe",
  }),
  prompt_probs: optionalKey(z.array(positiveNumber).min(1), "Weight of each file in an epoch; null shuffles all."),
  input_key: key(column, "input", "Column of the prompt: a string or a list of chat messages."),
  label_key: optionalKey(column, "Column handed to the agent as the row's label."),
  output_key: optionalKey(column, "Column of the reply that sft trains on."),
  max_len: key(z.int().min(2), 2048, "Longest sequence, prompt and replies together.", {
    unit: "tokens",
    metrics: ["response_length", "stop/context"],
  }),
  mean_len: optionalKey(positiveNumber, "Mean length of a row that plan reckons with; null is 0.6 of max_len.", {
    unit: "tokens",
  }),
  max_samples: optionalKey(positiveInteger, "Rows taken of each file, the first; null takes all.", {
    unit: "rows",
  }),
  epochs: key(positiveInteger, 1, "Passes over the dataset when run.steps is null.", { unit: "passes" }),
  chat_template: optionalKey(path, "Jinja file in place of the tokenizer's chat template.", {
    path: "recipe",
  }),
});
