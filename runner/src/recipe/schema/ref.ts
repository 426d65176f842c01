import { optionalKey, path, section } from "./key.ts";

export const ref = section("The reference policy of the KL term, read when algo.kl.init_coef is above 0.", {
  model_name_or_path: optionalKey(path, "Hugging Face folder of the reference; null takes actor.model_name_or_path.", {
    path: "recipe",
    metrics: ["kl"],
  }),
});
