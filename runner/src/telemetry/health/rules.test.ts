import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it, onTestFinished } from "vitest";
import { type Recipe, recipeKeys } from "../../recipe/schema.ts";
import type { RunEvent } from "../events.ts";
import { EventLog } from "../log.ts";
import { healthRules } from "./rules.ts";
import { watchHealth } from "./watch.ts";

type Funnel = Extract<RunEvent, { type: "funnel" }>;

interface Step {
  metrics?: Record<string, number>;
  seconds?: Record<string, number>;
  funnel?: Partial<Funnel>;
  /** Of its groups. */
  rewards?: number[];
}

const recipe = (maxStaleness = 1, estimator = "grpo") =>
  ({ train: { max_staleness: maxStaleness }, algo: { advantage: { estimator } } }) as Recipe;

/** Series are made by hand: a run that is well but for what `given` says of its steps, numbered from 1. */
function health(
  steps: number,
  given: (step: number) => Step,
  settings = recipe(),
): Extract<RunEvent, { type: "health" }>[] {
  const directory = mkdtempSync(join(tmpdir(), "health-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  const log = new EventLog(join(directory, "events.ndjson"));
  watchHealth(log, settings);
  const ids = { promptId: "p", epoch: 0, attempt: 0 };
  const counts = { sessions: 40, calls: 40, turns: 40, rows: 40, sampled: 400, trained: 400 };
  const fates = { trained: { sessions: 40, tokens: 400, reward: 20 } };
  const examples = { longest: ["long/0"], oldest: ["old/0"], truncated: ["cut/0"], "dropped/stale": ["late/0"] };
  for (let step = 1; step <= steps; step++) {
    const { metrics, seconds, funnel, rewards = [0, 1, 0.5, 0.5] } = given(step);
    for (const [index, reward] of rewards.entries()) {
      log.emit({ type: "group", groupId: `g${step}.${index}`, ...ids, outcome: "trained", step, reward });
    }
    log.emit({ type: "funnel", step, ...counts, masked: {}, dropped: {}, fates, examples, ...funnel });
    const well = { reward: 0.5, entropy: 1, logprob_gap_mean: 0.02, groups_without_signal: 1, turns: 3, grad_norm: 1 };
    const spent = { step: 3, wait: 1, train: 1, sync: 0.2, generate: 2.8, model: 30, agent: 10, ...seconds };
    const all = { ...well, staleness_mean: 1, ...metrics };
    log.emit({ type: "step", step, policyVersion: step, metrics: all, seconds: spent });
  }
  return [...log.read()].flatMap((event) => (event.type === "health" ? [event] : []));
}

const lost = (sessions: number, tokens: number) => ({
  fates: {
    trained: { sessions: 40, tokens: 400, reward: 20 },
    stale: { sessions, tokens, reward: sessions / 2 },
  },
});
const late = (value: number, from: number, before: number) => (step: number) => (step < from ? before : value);

/** `fires` does so first at step `at`; `not` is much like it, and must not. */
interface Case {
  rule: string;
  key: string;
  evidence: string[];
  at: number;
  fires: (step: number) => Step;
  not: (step: number) => Step;
  maxStaleness?: number;
}

const entropy = late(0.05, 21, 1);
const cases: Case[] = [
  {
    rule: "entropy_collapse",
    ...{ key: "actor.entropy_coef", evidence: ["long/0"], at: 30 },
    fires: (step) => ({ metrics: { entropy: entropy(step) } }),
    // Learned: of rewards from 0 to 1.
    not: (step) => ({ metrics: { entropy: entropy(step), reward: late(0.9, 21, 0.5)(step) } }),
  },
  {
    rule: "logprob_drift",
    ...{ key: "train.max_staleness", evidence: ["old/0"], at: 15 },
    fires: (step) => ({ metrics: { logprob_gap_mean: late(0.35, 11, 0.02)(step) } }),
    not: (step) => ({ metrics: { logprob_gap_mean: late(0.25, 11, 0.02)(step) } }),
  },
  {
    rule: "logprob_drift",
    ...{ key: "engine.dtype", evidence: ["old/0"], at: 5 },
    fires: () => ({ metrics: { logprob_gap_mean: 0.15, staleness_mean: 0 } }),
    not: () => ({ metrics: { logprob_gap_mean: 0.05, staleness_mean: 0 } }),
  },
  {
    rule: "no_signal",
    ...{ key: "rollout.n_samples_per_prompt", evidence: ["long/0"], at: 10 },
    fires: () => ({ metrics: { groups_without_signal: 4 } }),
    not: () => ({ metrics: { groups_without_signal: 4, reward: 0.9 } }),
  },
  {
    rule: "no_signal",
    ...{ key: "train.agent_path", evidence: ["long/0"], at: 10 },
    fires: () => ({ metrics: { groups_without_signal: 4, reward: 0 }, rewards: [0, 0, 0, 0] }),
    not: () => ({ metrics: { groups_without_signal: 3, reward: 0 }, rewards: [0, 0, 0, 0] }),
  },
  {
    rule: "truncation",
    ...{ key: "rollout.max_new_tokens", evidence: ["cut/0"], at: 18 },
    fires: (step) => ({ metrics: { "turn/length": late(0.5, 16, 0.02)(step) } }),
    not: (step) => ({ metrics: { "turn/length": late(0.5, 16, 0.3)(step) } }),
  },
  {
    rule: "no_tool_calls",
    ...{ key: "train.agent_path", evidence: ["long/0"], at: 30 },
    fires: (step) => ({ metrics: { turns: late(1, 21, 3)(step) } }),
    not: () => ({ metrics: { turns: 1 } }),
  },
  {
    rule: "gradient_spike",
    ...{ key: "actor.adam.lr", evidence: ["long/0"], at: 15 },
    fires: (step) => ({ metrics: { grad_norm: step === 15 ? 25 : 1 } }),
    not: (step) => ({ metrics: { grad_norm: step === 15 ? 15 : 1 } }),
  },
  {
    rule: "selection_bias",
    ...{ key: "train.max_staleness", evidence: ["late/0"], at: 7 },
    // Three a step, of 30 tokens where the kept ones have 10.
    fires: () => ({ funnel: lost(3, 90) }),
    not: () => ({ funnel: lost(3, 33) }),
  },
  {
    rule: "staleness_at_bound",
    ...{ key: "train.max_staleness", evidence: ["old/0"], at: 10, maxStaleness: 2 },
    fires: () => ({ metrics: { staleness_mean: 2 } }),
    not: () => ({ metrics: { staleness_mean: 1.5 } }),
  },
  {
    rule: "engine_idle",
    ...{ key: "actor.devices_per_node", evidence: [], at: 20 },
    fires: () => ({ seconds: { generate: 1 } }),
    not: () => ({ seconds: { generate: 2 } }),
  },
  {
    rule: "trainer_idle",
    ...{ key: "engine.count", evidence: ["long/0"], at: 20 },
    fires: () => ({ seconds: { wait: 2.7 } }),
    not: () => ({ seconds: { wait: 2 } }),
  },
  {
    rule: "trainer_idle",
    ...{ key: "rollout.workers", evidence: ["long/0"], at: 20 },
    fires: () => ({ seconds: { wait: 2.7, agent: 40 } }),
    not: () => ({ seconds: { wait: 2.7, agent: 40, step: 0.9 } }), // too short to be worth a change
  },
];

/** What fixtures/make_series.mjs keeps of a run that was made. */
function recorded(name: string): Step[] {
  const path = fileURLToPath(new URL(`fixtures/${name}.json`, import.meta.url));
  return JSON.parse(readFileSync(path, "utf8"));
}

describe("health rules", () => {
  it.each(cases)("$rule ($key) fires on a series that has it, and not on one much like it", (one) => {
    const { rule, key, evidence, at, fires, not, maxStaleness } = one;
    const [found, ...more] = health(49, fires, recipe(maxStaleness));
    expect(found).toMatchObject({ rule, key, rolloutIds: evidence, step: at });
    expect(more).toEqual([]);
    expect(health(49, not, recipe(maxStaleness))).toEqual([]);
  });

  it("have each a case here, a recipe key that exists, and alarms before advice", () => {
    expect(new Set(cases.map(({ rule }) => rule))).toEqual(new Set(healthRules.map(({ rule }) => rule)));
    for (const { key } of cases) expect(recipeKeys.has(key)).toBe(true);
    const severities = healthRules.map(({ severity }) => severity);
    expect(severities).toEqual([...Array(7).fill("alarm"), ...Array(3).fill("advice")]);
  });

  it("are told again while they hold, every 50 steps", () => {
    const told = health(75, () => ({ seconds: { generate: 1 } }));
    expect(told.map(({ step }) => step)).toEqual([20, 70]);
  });

  it("say nothing of a quickstart of 200 steps that learned its task", () => {
    // Recorded of that run, on a machine that was busy with others.
    const steps = recorded("quickstart");
    expect(steps.at(-1)!.metrics!.reward).toBeGreaterThan(0.9);
    expect(health(steps.length, (step) => steps[step - 1]!)).toEqual([]);
  });

  it("tell within eleven steps that a quickstart at 50 times its learning rate learns nothing", () => {
    // `--actor.adam.lr 0.05 --algo.dynamic_filtering off`; its rewards were 0 from the third step on.
    const steps = recorded("steep");
    const told = health(steps.length, (step) => steps[step - 1]!);
    expect(told.map(({ rule, step }) => [rule, step])).toEqual([
      ["logprob_drift", 5],
      ["no_signal", 11],
    ]);
  });

  it("say nothing of equal rewards where a teacher is learned from", () => {
    const equal = () => ({ metrics: { groups_without_signal: 4, reward: 0 }, rewards: [0, 0, 0, 0] });
    expect(health(20, equal, recipe(1, "on_policy_distill"))).toEqual([]);
    expect(health(20, equal)).toHaveLength(1);
  });

  it("say nothing of a run without what they look at", () => {
    const directory = mkdtempSync(join(tmpdir(), "health-"));
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
    const log = new EventLog(join(directory, "events.ndjson"));
    watchHealth(log, recipe());
    for (let step = 1; step <= 60; step++) log.emit({ type: "step", step, policyVersion: step, metrics: { loss: 1 } });
    expect(log.run.health).toEqual([]);
  });
});
