import type { Guardrail } from "./finding.ts";

/** Every estimator of this version takes its baseline over the group (case C2). */
export const groupSize: Guardrail = {
  holds: "A group has at least two rollouts to compare.",
  keys: ["rollout.n_samples_per_prompt", "algo.advantage.estimator"],
  check({ rollout, algo }) {
    const n = rollout.n_samples_per_prompt;
    if (n > 1) return null;
    const why = `${algo.advantage.estimator} compares the rollouts of a prompt, and one alone has no advantage`;
    const message = `rollout.n_samples_per_prompt must be at least 2, not ${n}: ${why}`;
    return { message, settings: [{ key: "rollout.n_samples_per_prompt", value: 2 }] };
  },
};

export const minGroup: Guardrail = {
  holds: "The least group that counts has two rollouts, and no more than are sampled.",
  keys: ["rollout.min_group", "rollout.n_samples_per_prompt"],
  check({ rollout }) {
    const { min_group: least, n_samples_per_prompt: n } = rollout;
    if (least === null || (least >= 2 && least <= n) || n < 2) return null;
    const message = `rollout.min_group must be from 2 to rollout.n_samples_per_prompt (${n}), not ${least}`;
    return { message, settings: [{ key: "rollout.min_group", value: least < 2 ? 2 : n }] };
  },
};

/** With S versions of lag and batches of B, the loop admits no group beyond (S + 1) B (DESIGN: staleness). */
export const inFlight: Guardrail = {
  holds: "rollout.max_in_flight is not above what train.max_staleness allows anyway.",
  severity: "warning",
  keys: ["rollout.max_in_flight", "train.max_staleness", "rollout.batch_size"],
  check({ rollout, train }) {
    const { max_in_flight: most, batch_size: batch } = rollout;
    const allowed = (train.max_staleness + 1) * batch;
    if (most === null || most <= allowed) return null;
    const sum = `(train.max_staleness ${train.max_staleness} + 1) x ${batch} prompts = ${allowed} groups`;
    return {
      message: `rollout.max_in_flight (${most}) does nothing above ${allowed}: ${sum} are admitted at once`,
      settings: [{ key: "rollout.max_in_flight", value: allowed }],
    };
  },
};

export const updates: Guardrail = {
  holds: "Each update of a batch has a rollout to train on.",
  keys: ["train.updates_per_batch", "rollout.batch_size", "rollout.n_samples_per_prompt"],
  check({ rollout, train }) {
    const rows = rollout.batch_size * rollout.n_samples_per_prompt;
    if (train.updates_per_batch <= rows) return null;
    const sum = `${rollout.batch_size} prompts x ${rollout.n_samples_per_prompt} samples = ${rows} rollouts to divide`;
    return {
      message: `train.updates_per_batch (${train.updates_per_batch}) must be at most ${rows}: ${sum}`,
      settings: [{ key: "train.updates_per_batch", value: rows }],
    };
  },
};
