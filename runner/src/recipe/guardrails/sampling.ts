import { type Guardrail, mendedBy } from "./finding.ts";

/** The trainer's probabilities are over the full vocabulary; those of a truncated one are others (case B2). */
export const topP: Guardrail = {
  holds: "Training samples from the whole vocabulary.",
  keys: ["rollout.top_p"],
  check({ rollout }) {
    if (rollout.top_p === 1) return null;
    const why = "training needs log-probabilities over the full vocabulary, and top_p cuts it";
    const message = `rollout.top_p must be 1, not ${rollout.top_p}: ${why} (eval.top_p is free)`;
    return mendedBy("rollout.top_p", 1, message);
  },
};

export const temperature: Guardrail = {
  holds: "Training samples at a temperature above 0.",
  keys: ["rollout.temperature"],
  check({ rollout }) {
    if (rollout.temperature > 0) return null;
    const why = "greedy sampling gives a group of equal rollouts, without log-probabilities to train on";
    const message = `rollout.temperature must be above 0: ${why}; try 1`;
    return mendedBy("rollout.temperature", 1, message);
  },
};

export const replyLength: Guardrail = {
  holds: "A reply is shorter than data.max_len, which counts the prompt too.",
  verbs: ["run", "eval"],
  keys: ["rollout.max_new_tokens", "eval.max_new_tokens", "data.max_len"],
  check({ rollout, data, eval: evaluation }) {
    const tooLong = (section: string, tokens: number | null) => {
      if (tokens === null || tokens < data.max_len) return [];
      const key = `${section}.max_new_tokens`;
      const message = `${key} (${tokens}) must be below data.max_len (${data.max_len}), which counts the prompt too`;
      return [{ message, keys: [key, "data.max_len"], settings: [{ key, value: null }] }];
    };
    return [...tooLong("rollout", rollout.max_new_tokens), ...tooLong("eval", evaluation.max_new_tokens)];
  },
};

/** As the embedded engine refuses it when it starts, in whole pages. */
export const cacheSize: Guardrail = {
  holds: "The key/value cache holds one sequence of data.max_len.",
  verbs: ["run", "eval"],
  keys: ["engine.cache_tokens", "engine.page_size", "data.max_len", "engine.kind"],
  check({ engine, data }) {
    const { cache_tokens: tokens, page_size: page } = engine;
    const needed = Math.ceil(data.max_len / page) * page;
    if (engine.kind === "vllm" || tokens === null || tokens >= needed) return null;
    const sum = `${data.max_len} tokens (data.max_len) in pages of ${page}`;
    const message = `engine.cache_tokens (${tokens}) must be at least ${needed}: one sequence takes ${sum}`;
    return mendedBy("engine.cache_tokens", needed, message);
  },
};
