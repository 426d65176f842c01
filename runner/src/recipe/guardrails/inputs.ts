import { count } from "../arithmetic.ts";
import { nearest } from "../suggest.ts";
import { type Breach, type Guardrail, mendedBy } from "./finding.ts";

/** What a verb cannot start without. */
export const required: Guardrail = {
  holds: "The recipe names the data and the agent that its verb needs.",
  verbs: ["run", "sft", "eval"],
  keys: ["data.prompt_dataset", "eval.dataset", "train.agent_path", "train.agent_command"],
  check(recipe, verb) {
    const agent = recipe.train.agent_path ?? recipe.train.agent_command;
    const missing: Breach[] = [];
    const need = (key: string, value: unknown, what: string) => {
      if (value === null) missing.push({ message: `${key} is missing: ${verb} needs ${what}`, keys: [key] });
    };
    if (verb === "eval") need("eval.dataset", recipe.eval.dataset, "a file of held-out rows");
    else need("data.prompt_dataset", recipe.data.prompt_dataset, "a file of rows");
    if (verb !== "sft") need("train.agent_path", agent, "the file whose default export is the agent's class");
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
  verbs: ["run", "sft"],
  keys: ["ckpt.best_metric_key", "eval.sampled", "eval.pass_k"],
  check({ ckpt: { best_metric_key: metric }, eval: { sampled, pass_k: ks } }, verb) {
    if (metric === null || metric === "auto") return null;
    if (metric === "sampled" && !sampled && verb === "run") {
      return mendedBy("eval.sampled", true, "ckpt.best_metric_key sampled is measured with eval.sampled only");
    }
    const measured = verb === "sft" ? ["loss", "perplexity"] : ["accuracy", "reward", ...ks.map((k) => `pass@${k}`)];
    if (sampled && verb === "run") measured.push("sampled");
    // By data source: `math/accuracy`.
    if (measured.includes(metric.slice(metric.lastIndexOf("/") + 1))) return null;
    const message = `ckpt.best_metric_key names ${metric}, which evals do not measure: they do ${measured.join(", ")}`;
    return mendedBy("ckpt.best_metric_key", nearest(metric, measured) ?? "auto", message);
  },
};

export const evalPassK: Guardrail = {
  holds: "A pass@k has at least k samples of each prompt, and they differ.",
  verbs: ["run", "eval"],
  keys: ["eval.n_samples_per_prompt", "eval.pass_k", "eval.temperature"],
  check({ eval: { pass_k: ks, n_samples_per_prompt: n, temperature } }) {
    const most = Math.max(0, ...ks);
    if (most > n) {
      const message = `eval.pass_k ${most} needs as many samples: eval.n_samples_per_prompt is ${n}`;
      return mendedBy("eval.n_samples_per_prompt", most, message);
    }
    if (most < 2 || temperature > 0) return null;
    const message = `eval.pass_k ${most} at eval.temperature 0 compares ${n} samples that are all the same`;
    return mendedBy("eval.temperature", 1, message);
  },
};

export const curriculum: Guardrail = {
  holds: "One thing decides which prompts come first.",
  keys: ["data.curriculum", "data.prompt_probs"],
  check({ data: { curriculum: kind, prompt_probs: weights } }) {
    if (kind === "off" || weights === null) return null;
    const message = `data.curriculum ${kind} and data.prompt_probs both decide which prompts come first`;
    return mendedBy("data.curriculum", "off", message);
  },
};

export const evaluationWithoutData: Guardrail = {
  holds: "A cadence of evaluation has held-out rows.",
  severity: "warning",
  verbs: ["run", "sft"],
  keys: ["eval.steps", "eval.dataset"],
  check({ eval: evaluation }) {
    if (evaluation.dataset !== null || evaluation.steps === -1) return null;
    return mendedBy("eval.steps", -1, "eval.steps does nothing without eval.dataset");
  },
};
