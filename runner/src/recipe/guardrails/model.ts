import { type Rule, refuse } from "./finding.ts";

export const exportOverSource: Rule = ({ actor, ckpt }) => {
  if (ckpt.output_dir !== actor.model_name_or_path) return [];
  const keys = ["ckpt.output_dir", "actor.model_name_or_path"];
  return refuse(
    keys,
    "ckpt.output_dir is actor.model_name_or_path: the export would overwrite the model it starts from",
  );
};
