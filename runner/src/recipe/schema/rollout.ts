import { z } from "zod";
import { fraction, key, optionalKey, positiveInteger, positiveNumber, section } from "./key.ts";

export const rollout = section("How episodes are sampled for training.", {
  batch_size: key(positiveInteger, 128, "Prompt groups that a train step consumes.", {
    unit: "groups",
    metrics: ["rows", "live_groups"],
  }),
  n_samples_per_prompt: key(positiveInteger, 8, "Rollouts of one prompt, which form its group.", {
    unit: "rollouts",
    metrics: ["rows", "reward_std", "groups_without_signal"],
  }),
  temperature: key(z.number().min(0), 1, "Divides the logits when sampling for training.", {
    metrics: ["entropy", "reward_std"],
  }),
  top_p: key(fraction, 1, "Nucleus sampling in training; only 1 keeps log-probabilities exact."),
  max_new_tokens: optionalKey(positiveInteger, "Longest reply of one turn; null is what remains of data.max_len.", {
    unit: "tokens",
    metrics: ["response_length", "turn/length"],
  }),
  max_turns: key(positiveInteger, 16, "Model calls of one Env's episode at most.", {
    unit: "turns",
    metrics: ["turns", "stop/max_turns"],
  }),
  max_requests: key(positiveInteger, 256, "Model calls of one episode at most, of an agent with its own client.", {
    unit: "requests",
  }),
  timeout: key(positiveNumber, 300, "Deadline of one episode.", { unit: "seconds", metrics: ["stop/timeout"] }),
  turn_timeout: key(positiveNumber, 120, "Deadline of one model call.", { unit: "seconds", metrics: ["stop/timeout"] }),
  tool_timeout: key(positiveNumber, 120, "Deadline of an Env's own functions: its tools, its reward.", {
    unit: "seconds",
  }),
  workers: key(positiveInteger, 1, "Threads that run agents.", { unit: "threads" }),
  max_in_flight: optionalKey(positiveInteger, "Groups generated at once; null is what train.max_staleness allows.", {
    unit: "groups",
    metrics: ["live_groups", "staleness_mean"],
  }),
  min_group: optionalKey(positiveInteger, "Rollouts that must survive for a group to count; null is all.", {
    unit: "rollouts",
  }),
  max_attempts: key(positiveInteger, 3, "Times that a prompt is tried before its group is dropped.", {
    unit: "attempts",
  }),
});
