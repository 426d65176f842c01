import { count } from "../arithmetic.ts";
import { type Breach, type Guardrail, mendedBy } from "./finding.ts";

/** What a verb cannot start without. */
export const required: Guardrail = {
  holds: "The recipe names the data and the agent that its verb needs.",
  verbs: ["run", "sft", "eval"],
  keys: ["data.prompt_dataset", "data.output_key", "eval.dataset", "train.agent_path", "train.agent_command"],
  check(recipe, verb) {
    const agent = recipe.train.agent_path ?? recipe.train.agent_command;
    const missing: Breach[] = [];
    const need = (key: string, value: unknown, what: string) => {
      if (value === null) missing.push({ message: `${key} is missing: ${verb} needs ${what}`, keys: [key] });
    };
    if (verb === "eval") need("eval.dataset", recipe.eval.dataset, "a file of held-out rows");
    else need("data.prompt_dataset", recipe.data.prompt_dataset, "a file of rows");
    if (verb === "sft") need("data.output_key", recipe.data.output_key, "the column of the reply to train on");
    else need("train.agent_path", agent, "the file whose default export is the agent's class");
    return missing;
  },
};

export const oneAgent: Guardrail = {
  holds: "The agent is a class or a command, not both.",
  verbs: ["run", "eval"],
  keys: ["train.agent_command", "train.agent_path"],
  check({ train }) {
    if (train.agent_path === null || train.agent_command === null) return null;
    return "train.agent_path and train.agent_command each name an agent\n  fix: leave one of them out";
  },
};

export const graderOfCommand: Guardrail = {
  holds: "A grader's command grades what an agent's command did.",
  verbs: ["run", "eval"],
  keys: ["train.grader_command", "train.agent_command"],
  check({ train }) {
    if (train.grader_command === null || train.agent_command !== null) return null;
    return "train.grader_command grades what train.agent_command did; an agent's class returns its reward itself";
  },
};

export const promptWeights: Guardrail = {
  holds: "Each file of the dataset has a weight, or none has.",
  verbs: ["run", "sft"],
  keys: ["data.prompt_probs", "data.prompt_dataset"],
  check({ data }) {
    const { prompt_dataset: paths, prompt_probs: weights } = data;
    const files = [paths ?? []].flat().length;
    if (weights === null || files === 0 || weights.length === files) return null;
    const counts = `${weights.length} weights, data.prompt_dataset ${count(files, "file")}`;
    return `data.prompt_probs has ${counts}: give each its own`;
  },
};

export const promptFileTwice: Guardrail = {
  holds: "The dataset names each file once.",
  verbs: ["run", "sft"],
  keys: ["data.prompt_dataset"],
  check({ data }) {
    const paths = [data.prompt_dataset ?? []].flat();
    const twice = paths.find((path, index) => paths.indexOf(path) !== index);
    if (twice === undefined) return null;
    const fix = "name each file once, and give it more weight with data.prompt_probs";
    return `data.prompt_dataset names ${twice} twice: ${fix}`;
  },
};

export const exportOverSource: Guardrail = {
  holds: "The export does not overwrite the model that the run starts from.",
  verbs: ["run", "sft"],
  keys: ["ckpt.output_dir", "actor.model_name_or_path"],
  check({ actor, ckpt }) {
    if (ckpt.output_dir !== actor.model_name_or_path) return null;
    return "ckpt.output_dir is actor.model_name_or_path: the export would overwrite the model it starts from";
  },
};

export const bestMetric: Guardrail = {
  holds: "The metric that names the best checkpoint is one that evals measure.",
  keys: ["ckpt.best_metric_key", "eval.sampled"],
  check({ ckpt, eval: { sampled } }) {
    if (ckpt.best_metric_key !== "sampled" || sampled) return null;
    return mendedBy("eval.sampled", true, "ckpt.best_metric_key sampled is measured with eval.sampled only");
  },
};

export const evaluationWithoutData: Guardrail = {
  holds: "A cadence of evaluation has held-out rows.",
  severity: "warning",
  keys: ["eval.steps", "eval.dataset"],
  check({ eval: evaluation }) {
    if (evaluation.dataset !== null || evaluation.steps === -1) return null;
    return mendedBy("eval.steps", -1, "eval.steps does nothing without eval.dataset");
  },
};
