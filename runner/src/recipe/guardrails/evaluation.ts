import { type Rule, warn } from "./finding.ts";

export const evaluationWithoutData: Rule = ({ eval: evaluation }) => {
  if (evaluation.dataset !== null || evaluation.steps === -1) return [];
  return warn(["eval.steps"], "eval.steps does nothing without eval.dataset");
};

export const greedyRepeats: Rule = ({ eval: evaluation }) => {
  const { temperature, n_samples_per_prompt: n } = evaluation;
  if (evaluation.dataset === null || temperature > 0 || n === 1) return [];
  const keys = ["eval.n_samples_per_prompt", "eval.temperature"];
  return warn(keys, `eval.n_samples_per_prompt (${n}) repeats the same greedy answer: raise eval.temperature above 0`);
};
