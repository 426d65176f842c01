// Which metrics are charts, in which order, under which titles. docs/events.md says what each is.

/** Beginnings of metrics that are no step's own: of `RunState.evals`, `tallies`, `funnels`, `engines`, step seconds. */
export const prefixes = { evals: "eval/", groups: "groups/", tokens: "tokens/", engines: "engine/", time: "time/" };

/** The trainer's side of a step, one after the other, from the bottom of the stack. */
export const timeParts = ["wait", "train", "store", "eval", "sync", "checkpoint", "other"];

/** Those that are one chart together. */
const together = [prefixes.time, prefixes.engines];

/** Titles by metric. One that ends in `/`, or is empty, stands for all that begin so: what follows ends the title. */
const sections: { title: string; closed?: boolean; metrics: Record<string, string> }[] = [
  {
    title: "Learning",
    metrics: {
      reward: "Reward (mean of the batch's rollouts)",
      loss: "Loss (nats a token)",
      "eval/": "Held out: ",
      reward_std: "Reward, standard deviation",
    },
  },
  {
    title: "Rollouts",
    metrics: {
      response_length: "Trained tokens a rollout",
      turns: "Trained replies a rollout",
      groups_without_signal: "Groups without signal",
      "stop/": "Rollouts that ended by (share): ",
      "turn/": "Model calls that ended by (share): ",
    },
  },
  {
    title: "Policy",
    metrics: {
      entropy: "Entropy (nats a token)",
      policy_kl: "KL to the batch's policy (nats a token)",
      kl: "KL to the reference (nats a token)",
      clip_ratio: "Clipped tokens (share)",
      grad_norm: "Gradient norm (largest of the updates)",
      lr: "Learning rate",
    },
  },
  {
    title: "Off-policy",
    metrics: {
      logprob_gap_mean: "Log-probability gap, mean (nats a token)",
      logprob_gap_max: "Log-probability gap, largest (nats)",
      staleness_mean: "Staleness, mean (policy versions)",
      staleness_max: "Staleness, largest (policy versions)",
      correction_ratio: "Corrected tokens (share)",
    },
  },
  {
    title: "Speed and queue",
    metrics: {
      tokens_per_second: "Trained tokens a second",
      "time/": "Where a step's time went (seconds)",
      live_groups: "Queue: groups between admission and training",
      generate_share: "Time with a rollout under way (share)",
      "engine/": "Engines at work (by number; broken: down)",
    },
  },
  { title: "Groups and tokens", closed: true, metrics: { "groups/": "Groups: ", "tokens/": "Tokens: " } },
  { title: "What agents report", closed: true, metrics: { "info/": "" } },
  { title: "Other metrics", closed: true, metrics: { "": "" } },
];

/** The charts that there are for metrics of these names: each in the first section that has it. */
export function chartsOf(names: string[]) {
  const left = new Set(names.map((name) => together.find((prefix) => name.startsWith(prefix)) ?? name));
  const placed = sections.map(({ title, closed = false, metrics }) => {
    const charts = Object.entries(metrics).flatMap(([wanted, begun]) => {
      const isPrefix = /\/$|^$/.test(wanted) && !together.includes(wanted);
      const keys = [...left].filter((name) => (isPrefix ? name.startsWith(wanted) : name === wanted)).sort();
      for (const key of keys) left.delete(key);
      return keys.map((key) => ({ key, title: begun + (isPrefix ? key.slice(wanted.length) : "") }));
    });
    return { title, closed, charts };
  });
  return placed.filter(({ charts }) => charts.length > 0);
}
