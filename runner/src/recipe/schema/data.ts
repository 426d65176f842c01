import { z } from "zod";
import { files, key, optionalKey, path, positiveInteger, positiveNumber, section } from "./key.ts";

const column = z.string().min(1);
const curricula = z.enum(["off", "solve_rate"]);

export const data = section("The dataset and how its rows become prompts.", {
  prompt_dataset: optionalKey(files, "JSONL, JSON, CSV or Parquet file of the training rows, or a list of such.", {
    path: "recipe",
  }),
  prompt_probs: optionalKey(z.array(positiveNumber).min(1), "Weight of each file in an epoch; null shuffles all."),
  input_key: key(column, "input", "Column of the prompt: a string or a list of chat messages."),
  label_key: optionalKey(column, "Column handed to the agent as the row's label."),
  output_key: optionalKey(column, "Column of the reply that sft trains on; null has it in data.input_key's messages."),
  tools_key: optionalKey(column, "Column of the tools' schemas that sft shows the chat template."),
  train_on_last_turn_only: key(z.boolean(), false, "Whether sft trains a conversation's last assistant turn alone.", {
    metrics: ["tokens_trained"],
  }),
  max_len: key(z.int().min(2), 2048, "Longest sequence, prompt and replies together.", {
    unit: "tokens",
    metrics: ["response_length", "stop/context"],
  }),
  overlong: key(z.enum(["refuse", "drop", "truncate"]), "refuse", "What sft does with rows longer than data.max_len."),
  mean_len: optionalKey(positiveNumber, "Mean length of a row that plan reckons with; null is 0.6 of max_len.", {
    unit: "tokens",
  }),
  max_samples: optionalKey(positiveInteger, "Rows taken of each file, the first; null takes all.", {
    unit: "rows",
  }),
  curriculum: key(curricula, "off", "Which prompts of an epoch come first: any, or those solved at times.", {
    metrics: ["groups_without_signal"],
  }),
  epochs: key(positiveInteger, 1, "Passes over the dataset when run.steps is null.", { unit: "passes" }),
  chat_template: optionalKey(path, "Jinja file in place of the tokenizer's chat template.", {
    path: "recipe",
  }),
});
