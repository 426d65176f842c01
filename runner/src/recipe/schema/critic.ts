import { path, plannedKey, section } from "./key.ts";

export const critic = section("The value model of estimators that need one.", {
  model_name_or_path: plannedKey(path.nullable(), null, "Hugging Face folder of the critic; null plans none.", {
    path: "recipe",
  }),
});
