import { key, optionalKey, path, positiveNumber, section } from "./key.ts";
import { optimizerKeys } from "./optimizer.ts";

const clip = positiveNumber.nullable();

export const critic = section("The value model of algo.advantage.estimator gae, and its optimizer.", {
  model_name_or_path: optionalKey(path, "Hugging Face folder of the critic; null takes the policy's first weights.", {
    path: "recipe",
    metrics: ["explained_variance"],
  }),
  ...optimizerKeys("critic", "critic", 5e-6),
  value_clip: key(clip, 0.2, "How far a value may move in one batch before its loss is cut; null is off.", {
    metrics: ["value_loss", "value_clip_ratio"],
  }),
});
