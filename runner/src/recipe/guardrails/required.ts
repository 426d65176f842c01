import { type Finding, type Rule, refuse } from "./finding.ts";

/** What a verb cannot start without. */
export const required: Rule = (recipe, verb) => {
  const problems: Finding[] = [];
  const need = (key: string, value: unknown, what: string) => {
    if (value === null) problems.push(...refuse([key], `${key} is missing: ${verb} needs ${what}`));
  };
  if (verb === "eval") need("eval.dataset", recipe.eval.dataset, "a file of held-out rows");
  else need("data.prompt_dataset", recipe.data.prompt_dataset, "a file of rows");
  if (verb === "sft") need("data.output_key", recipe.data.output_key, "the column of the reply to train on");
  else need("train.agent_path", recipe.train.agent_path, "the file whose default export is the agent's class");
  return problems;
};
