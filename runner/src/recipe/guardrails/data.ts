import { type Rule, refuse } from "./finding.ts";

export const promptWeights: Rule = ({ data }) => {
  const { prompt_dataset: paths, prompt_probs: weights } = data;
  const count = paths === null ? 0 : [paths].flat().length;
  if (weights === null || count === 0 || weights.length === count) return [];
  const files = count === 1 ? "1 file" : `${count} files`;
  const message = `data.prompt_probs has ${weights.length} weights, data.prompt_dataset ${files}: give each its own`;
  return refuse(["data.prompt_probs", "data.prompt_dataset"], message);
};

export const promptFileTwice: Rule = ({ data }) => {
  const paths = [data.prompt_dataset ?? []].flat();
  const twice = paths.find((path, index) => paths.indexOf(path) !== index);
  if (twice === undefined) return [];
  const fix = "name each file once, and give it more weight with data.prompt_probs";
  return refuse(["data.prompt_dataset"], `data.prompt_dataset names ${twice} twice: ${fix}`);
};
