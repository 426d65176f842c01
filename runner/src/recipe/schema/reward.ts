import { z } from "zod";
import { key, positiveNumber, section } from "./key.ts";

export const reward = section("Rewards before they become advantages.", {
  clip_range: key(z.tuple([z.number(), z.number()]), [-10, 10], "Bounds that rewards are clipped to."),
  overlong_buffer_len: key(z.int().min(0), 0, "The reward falls over this many tokens before the limit; 0 is off.", {
    unit: "tokens",
    metrics: ["response_length"],
  }),
  overlong_penalty_factor: key(positiveNumber, 1, "What a rollout that reaches the limit has lost.", {
    metrics: ["response_length"],
  }),
  timeout: key(positiveNumber, 60, "Deadline of the grader for one episode.", { unit: "seconds" }),
});
