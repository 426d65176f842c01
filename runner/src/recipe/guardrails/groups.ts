import { type Rule, refuse } from "./finding.ts";

/** Every estimator of this version takes its baseline over the group. */
export const groupSize: Rule = ({ rollout, algo }) => {
  const n = rollout.n_samples_per_prompt;
  if (n > 1) return [];
  const keys = ["rollout.n_samples_per_prompt", "algo.advantage.estimator"];
  const why = `${algo.advantage.estimator} compares the rollouts of a prompt, and one alone has no advantage`;
  return refuse(keys, `rollout.n_samples_per_prompt must be at least 2, not ${n}: ${why}`);
};

export const minGroup: Rule = ({ rollout }) => {
  const { min_group: least, n_samples_per_prompt: n } = rollout;
  if (least === null || (least >= 2 && least <= n) || n < 2) return [];
  const keys = ["rollout.min_group", "rollout.n_samples_per_prompt"];
  return refuse(keys, `rollout.min_group must be from 2 to rollout.n_samples_per_prompt (${n}), not ${least}`);
};

export const inFlight: Rule = ({ rollout }) => {
  const { max_in_flight: most, batch_size: batch } = rollout;
  if (most === null || most >= batch) return [];
  const keys = ["rollout.max_in_flight", "rollout.batch_size"];
  return refuse(
    keys,
    `rollout.max_in_flight (${most}) must be at least rollout.batch_size (${batch}): a batch could never fill`,
  );
};

export const updates: Rule = ({ rollout, train }) => {
  const rows = rollout.batch_size * rollout.n_samples_per_prompt;
  if (train.updates_per_batch <= rows) return [];
  const keys = ["train.updates_per_batch", "rollout.batch_size", "rollout.n_samples_per_prompt"];
  const rule = `${rollout.batch_size} prompts x ${rollout.n_samples_per_prompt} samples = ${rows} rollouts to divide`;
  return refuse(keys, `train.updates_per_batch (${train.updates_per_batch}) must be at most ${rows}: ${rule}`);
};
