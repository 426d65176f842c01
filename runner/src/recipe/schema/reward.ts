import { z } from "zod";
import { key, positiveNumber, section } from "./key.ts";

export const reward = section("Rewards before they become advantages.", {
  clip_range: key(z.tuple([z.number(), z.number()]), [-10, 10], {
    description: "Lowest and highest reward of an episode; rewards outside are set to the bound.",
  }),
  timeout: key(positiveNumber, 60, {
    description: "Deadline of train.grader_command for one episode.",
    unit: "seconds",
  }),
});
