import { type Rule, refuse, warn } from "./finding.ts";

/** The trainer's probabilities are over the full vocabulary; those of a truncated one are others (case B2). */
export const topP: Rule = ({ rollout }) => {
  if (rollout.top_p === 1) return [];
  const why = "training needs log-probabilities over the full vocabulary, and top_p cuts it";
  return refuse(["rollout.top_p"], `rollout.top_p must be 1, not ${rollout.top_p}: ${why} (eval.top_p is free)`);
};

export const temperature: Rule = ({ rollout }) => {
  if (rollout.temperature > 0) return [];
  const why = "greedy sampling gives a group of equal rollouts, without log-probabilities to train on";
  return refuse(["rollout.temperature"], `rollout.temperature must be above 0: ${why}; try 1`);
};

export const replyLength: Rule = ({ rollout, data, eval: evaluation }) => {
  const tooLong = (section: string, tokens: number | null) => {
    if (tokens === null || tokens < data.max_len) return [];
    const key = `${section}.max_new_tokens`;
    const message = `${key} (${tokens}) must be below data.max_len (${data.max_len}), which counts the prompt too`;
    return refuse([key, "data.max_len"], message);
  };
  return [...tooLong("rollout", rollout.max_new_tokens), ...tooLong("eval", evaluation.max_new_tokens)];
};

export const turnTimeout: Rule = ({ rollout }) => {
  const { timeout, turn_timeout: turn } = rollout;
  if (turn <= timeout) return [];
  const message = `rollout.turn_timeout (${turn} s) is longer than a whole episode's rollout.timeout (${timeout} s)`;
  return warn(["rollout.turn_timeout", "rollout.timeout"], message);
};
