import { failures } from "../../agents/failures.ts";
import { mean, sum } from "../../algorithms/advantages/estimator.ts";
import type { Recipe } from "../../recipe/schema.ts";
import type { TimedEvent } from "../events.ts";
import type { RunState } from "../fold.ts";

export type HealthEvent = Extract<TimedEvent, { type: "health" }>;

/** `key`: the recipe key most likely at fault. */
export type Finding = Pick<HealthEvent, "message" | "key">;

export interface HealthRule {
  rule: string;
  severity: HealthEvent["severity"];
  /** Kinds of a funnel's examples that show it, the best first. */
  evidence: string[];
  /** What is wrong, after the newest step. */
  check(run: RunState, recipe: Recipe): Finding | null;
}

/** Alarms, then advice. Windows are in steps; each comparison is false where a metric is missing. */
export const healthRules: HealthRule[] = [
  { rule: "entropy_collapse", severity: "alarm", evidence: ["stop/stop", "longest"], check: entropyCollapse },
  { rule: "logprob_drift", severity: "alarm", evidence: ["oldest"], check: logprobDrift },
  { rule: "no_signal", severity: "alarm", evidence: ["dropped/no_signal", "longest"], check: noSignal },
  { rule: "truncation", severity: "alarm", evidence: ["truncated"], check: truncation },
  { rule: "no_tool_calls", severity: "alarm", evidence: ["stop/env_done", "longest"], check: noToolCalls },
  { rule: "gradient_spike", severity: "alarm", evidence: ["longest"], check: gradientSpike },
  { rule: "selection_bias", severity: "alarm", evidence: ["dropped/stale", "longest"], check: selectionBias },
  { rule: "staleness_at_bound", severity: "advice", evidence: ["oldest"], check: stalenessAtBound },
  { rule: "engine_idle", severity: "advice", evidence: [], check: engineIdle },
  { rule: "trainer_idle", severity: "advice", evidence: ["longest"], check: trainerIdle },
];

const window = 10;

const fixed = (value: number) => value.toPrecision(2);
const percent = (share: number) => `${Math.round(100 * share)}%`;

/** Mean of a metric over the steps `[from, to)`, as `slice` counts them. */
function average({ steps }: RunState, name: string, from: number, to?: number): number {
  return mean(steps.slice(from, to).flatMap(({ metrics }) => metrics[name] ?? []));
}

/** How far the mean reward is from the worst group's (0) to the best one's (1). */
function progress(run: RunState, from: number, to?: number): number {
  const { least, most } = run.rewards;
  return most > least ? (average(run, "reward", from, to) - least) / (most - least) : 0;
}

/** A policy that has learned its task has little entropy too. */
function entropyCollapse(run: RunState): Finding | null {
  const [before, now] = [average(run, "entropy", 0, window), average(run, "entropy", -window)];
  const gained = progress(run, -window) - progress(run, -2 * window, -window);
  const isWell = progress(run, -window) > 0.75 || gained > 0.05;
  if (run.steps.length < 2 * window || !(now < before / 10) || isWell) return null;
  const reward = fixed(average(run, "reward", -window));
  const message = `entropy fell from ${fixed(before)} to ${fixed(now)} nats a token, and reward stays at ${reward}`;
  return { message, key: "actor.entropy_coef" };
}

/** Rollouts of other weights differ; those of the same differ by arithmetic alone. */
function logprobDrift(run: RunState): Finding | null {
  const [gap, age] = [average(run, "logprob_gap_mean", -5), average(run, "staleness_mean", -5)];
  const isStale = age > 0.05;
  if (run.steps.length < 5 || !(gap > (isStale ? 0.3 : 0.1))) return null;
  const message = `sampler and trainer differ by ${fixed(gap)} nats a token, rollouts being ${fixed(age)} versions old`;
  return { message, key: isStale ? "train.max_staleness" : "engine.dtype" };
}

function noSignal(run: RunState, { algo }: Recipe): Finding | null {
  // A teacher is one.
  if (algo.advantage.estimator === "on_policy_distill") return null;
  const without = sum(run.steps.slice(-window).map(({ metrics }) => metrics.groups_without_signal ?? 0));
  const groups = sum(run.tallies.slice(-window).map(({ trained, dropped }) => trained + sum(Object.values(dropped))));
  if (run.steps.length < window || !(without / groups > 0.98) || progress(run, -window) > 0.75) return null;
  const message = `in ${without} of the last ${groups} groups every rollout had the same reward: nothing to learn from`;
  const isReward = run.rewards.most <= run.rewards.least;
  return { message, key: isReward ? "train.agent_path" : "rollout.n_samples_per_prompt" };
}

function truncation({ steps }: RunState): Finding | null {
  const cut = (part: RunState["steps"]) =>
    sum(part.flatMap(({ metrics }) => [metrics["turn/length"] ?? 0, metrics["turn/context"] ?? 0])) / part.length;
  const [before, now] = [cut(steps.slice(0, window)), cut(steps.slice(-5))];
  if (steps.length < window + 5 || !(now > 0.25 && now > 3 * before)) return null;
  const message = `${percent(now)} of the replies are cut off, where it was ${percent(before)}`;
  return { message, key: "rollout.max_new_tokens" };
}

function noToolCalls(run: RunState): Finding | null {
  const [before, now] = [average(run, "turns", 0, window), average(run, "turns", -window)];
  if (run.steps.length < 2 * window || !(before > 1.5 && now < 1.05)) return null;
  const message = `rollouts end after their first turn, where they had ${fixed(before)}: no tools are called any more`;
  return { message, key: "train.agent_path" };
}

function gradientSpike({ steps }: RunState): Finding | null {
  const norms = steps.slice(-2 * window - 1).flatMap(({ metrics }) => metrics.grad_norm ?? []);
  const newest = norms.pop() ?? 0;
  const usual = norms.sort((one, other) => one - other)[norms.length >> 1] ?? 0;
  if (norms.length < window || !(newest > 20 * usual)) return null;
  return { message: `the gradient's norm is ${fixed(newest)}, usually it is ${fixed(usual)}`, key: "actor.adam.lr" };
}

/** Filters choose by reward, on purpose; what else is lost should look like what is trained. */
function selectionBias({ funnels, rewards }: RunState): Finding | null {
  const fates = funnels.slice(-2 * window).flatMap((funnel) => Object.entries(funnel.fates ?? {}));
  const part = (isLost: boolean) => {
    const all = fates.filter(([name]) => isLost === name in failures).map(([, fate]) => fate);
    const sessions = sum(all.map((fate) => fate.sessions));
    const [length, reward] = [sum(all.map((fate) => fate.tokens)), sum(all.map((fate) => fate.reward))];
    return { sessions, length: length / sessions, reward: reward / sessions };
  };
  const [kept, lost] = [part(false), part(true)];
  const isLonger = lost.length > 1.5 * kept.length || lost.length < kept.length / 1.5;
  const isOther = Math.abs(lost.reward - kept.reward) > 0.25 * (rewards.most - rewards.least);
  if (!(lost.sessions > 20 && lost.sessions > 0.05 * kept.sessions && (isLonger || isOther))) return null;
  const show = ({ length, reward }: typeof kept) => `${fixed(length)} tokens and reward ${fixed(reward)}`;
  const message = `${lost.sessions} lost rollouts had ${show(lost)} on average, the kept ones ${show(kept)}`;
  return { message, key: fates.some(([name]) => name === "stale") ? "train.max_staleness" : "rollout.min_group" };
}

function stalenessAtBound(run: RunState, { train }: Recipe): Finding | null {
  const age = average(run, "staleness_mean", -window);
  if (train.max_staleness < 2 || run.steps.length < window || !(age > 0.9 * train.max_staleness)) return null;
  const message = `rollouts are ${fixed(age)} versions old when they train: generation is so far ahead`;
  return { message, key: "train.max_staleness" };
}

/** Shares of the last steps' time; null where they are too short to be worth a change. */
function shareOf({ steps }: RunState, part: string): number | null {
  const seconds = steps.slice(-window).map((step) => step.seconds ?? {});
  const total = sum(seconds.map(({ step = 0 }) => step));
  return steps.length < 2 * window || total < window ? null : sum(seconds.map((one) => one[part] ?? 0)) / total;
}

function engineIdle(run: RunState, { train }: Recipe): Finding | null {
  const share = shareOf(run, "generate");
  if (share === null || share > 0.5) return null;
  const key = train.max_staleness === 0 ? "train.max_staleness" : "actor.devices_per_node";
  return { message: `engines have nothing to do in ${percent(1 - share)} of the time: they wait for the trainer`, key };
}

function trainerIdle(run: RunState): Finding | null {
  const share = shareOf(run, "wait");
  if (share === null || share < 0.8) return null;
  const isAgents = (shareOf(run, "agent") ?? 0) > (shareOf(run, "model") ?? 0);
  const message = `the trainer waits in ${percent(share)} of the time: ${isAgents ? "agents" : "engines"} are slow`;
  return { message, key: isAgents ? "rollout.workers" : "engine.count" };
}
