import { type Guardrail, mendedBy } from "./finding.ts";

/** Those that compare all rollouts of the batch; what a file does is its author's to say. */
const ungrouped = /^(flash_)?reinforce$|^gae$|^on_policy_distill$|[/\\]/;

/** The others take their baseline over the group (case C2), and so does filtering. */
export const groupSize: Guardrail = {
  holds: "A group has at least two rollouts to compare.",
  keys: ["rollout.n_samples_per_prompt", "algo.advantage.estimator", "algo.dynamic_filtering"],
  check({ rollout, algo }) {
    const n = rollout.n_samples_per_prompt;
    const { estimator } = algo.advantage;
    const grouped = ungrouped.test(estimator) ? `algo.dynamic_filtering ${algo.dynamic_filtering}` : estimator;
    if (n > 1 || grouped === "algo.dynamic_filtering off") return null;
    const why = `${grouped} compares the rollouts of a prompt, and one alone has no advantage`;
    const message = `rollout.n_samples_per_prompt must be at least 2, not ${n}: ${why}`;
    return mendedBy("rollout.n_samples_per_prompt", 2, message);
  },
};

export const minGroup: Guardrail = {
  holds: "The least group that counts has two rollouts, and no more than are sampled.",
  keys: ["rollout.min_group", "rollout.n_samples_per_prompt"],
  check({ rollout }) {
    const { min_group: least, n_samples_per_prompt: n } = rollout;
    if (least === null || (least >= 2 && least <= n) || n < 2) return null;
    const message = `rollout.min_group must be from 2 to rollout.n_samples_per_prompt (${n}), not ${least}`;
    return mendedBy("rollout.min_group", least < 2 ? 2 : n, message);
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
    const message = `rollout.max_in_flight (${most}) does nothing above ${allowed}: ${sum} are admitted at once`;
    return mendedBy("rollout.max_in_flight", allowed, message);
  },
};

export const evalEngines: Guardrail = {
  holds: "Some engine is left to train.",
  keys: ["eval.engines", "engine.count"],
  check({ engine, eval: { engines } }) {
    if (engines < engine.count) return null;
    const message = `eval.engines (${engines}) must be below engine.count (${engine.count}): none is left to train`;
    return mendedBy("engine.count", engines + 1, message);
  },
};

export const deterministic: Guardrail = {
  holds: "A deterministic run has nothing whose order is left to chance.",
  keys: ["run.deterministic", "train.max_staleness", "train.agent_command", "engine.kind", "algo.dynamic_filtering"],
  check({ run, train, engine, algo: { dynamic_filtering: filter } }) {
    if (!run.deterministic) return null;
    const wrong = [
      ["train.max_staleness", train.max_staleness, 0, "which batch a rollout meets depends on time"],
      ["train.agent_command", train.agent_command, null, "a program calls the model in an order of its own"],
      [
        "algo.dynamic_filtering",
        filter === "off" ? "drop" : filter,
        "drop",
        "which groups a budget replaces is chance",
      ],
      ["engine.kind", engine.kind, "embedded", "only that engine computes a request in a fixed batch"],
    ] as const;
    return wrong
      .filter(([, value, needed]) => value !== needed)
      .map(([key, , value, why]) => mendedBy(key, value, `run.deterministic needs ${key} ${value}: ${why}`));
  },
};

export const updates: Guardrail = {
  holds: "Each update of a batch has a rollout to train on.",
  keys: ["train.updates_per_batch", "rollout.batch_size", "rollout.n_samples_per_prompt"],
  check({ rollout, train }) {
    const rows = rollout.batch_size * rollout.n_samples_per_prompt;
    if (train.updates_per_batch <= rows) return null;
    const sum = `${rollout.batch_size} prompts x ${rollout.n_samples_per_prompt} samples = ${rows} rollouts to divide`;
    const message = `train.updates_per_batch (${train.updates_per_batch}) must be at most ${rows}: ${sum}`;
    return mendedBy("train.updates_per_batch", rows, message);
  },
};
