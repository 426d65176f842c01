import { z } from "zod";
import { fraction, key, positiveInteger, positiveNumber, section } from "./key.ts";

export const rollout = section("How episodes are sampled for training.", {
  batch_size: key(positiveInteger, 128, { description: "Prompt groups that a train step consumes.", unit: "groups" }),
  n_samples_per_prompt: key(positiveInteger, 8, { description: "Rollouts of one prompt, which form its group." }),
  temperature: key(z.number().min(0), 1, { description: "Divides the logits when sampling for training." }),
  top_p: key(fraction, 1, { description: "Nucleus sampling in training; only 1 keeps log-probabilities exact." }),
  max_new_tokens: key(positiveInteger.nullable(), null, {
    description: "Longest reply of one turn; null is what remains of data.max_len.",
    unit: "tokens",
  }),
  max_turns: key(positiveInteger, 16, { description: "Model calls of one episode at most.", unit: "turns" }),
  timeout: key(positiveNumber, 300, { description: "Deadline of one episode.", unit: "seconds" }),
  turn_timeout: key(positiveNumber, 120, { description: "Deadline of one model call.", unit: "seconds" }),
  workers: key(positiveInteger, 1, { description: "Threads that run agents.", unit: "threads" }),
  max_in_flight: key(positiveInteger.nullable(), null, {
    description: "Groups generated at once; null is what train.max_staleness allows.",
    unit: "groups",
  }),
  min_group: key(positiveInteger.nullable(), null, {
    description: "Rollouts that must survive for a group with failed members to count; null is all of them.",
    unit: "rollouts",
  }),
  max_attempts: key(positiveInteger, 3, {
    description: "Times a prompt is tried before its failed group is dropped.",
    unit: "attempts",
  }),
});
