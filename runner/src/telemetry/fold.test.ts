import { describe, expect, it } from "vitest";
import { curveSvg, sparkline } from "./curve.ts";
import type { RunEvent } from "./events.ts";
import { foldRun } from "./fold.ts";
import { summarize } from "./summary.ts";

const step = (number: number, reward: number): RunEvent => ({
  type: "step",
  step: number,
  policyVersion: number,
  metrics: { reward, tokens_trained: 10, logprob_gap_mean: number / 1000, logprob_gap_max: number / 100 },
});
const group = (number: number, outcome: "trained" | "dropped", reason?: string): RunEvent => ({
  type: "group",
  groupId: `g${number}`,
  promptId: `p${number}`,
  epoch: 0,
  attempt: 0,
  outcome,
  reason,
  step: number,
});
const timed = (events: RunEvent[]) => events.map((event, index) => ({ time: 100 + index, ...event }));

const killedAndResumed: RunEvent[] = [
  { type: "started", version: 1, runId: "r", recipe: "x.yaml", command: "run", totalSteps: 3 },
  { type: "eval", step: 0, policyVersion: 0, metrics: { accuracy: 0.25, sampled: 0.125 } },
  group(1, "trained"),
  step(1, 0.1),
  group(2, "dropped", "engine"),
  step(2, 0.9),
  { type: "resumed", fromStep: 1, totalSteps: 3 },
  group(2, "trained"),
  step(2, 0.5),
  step(3, 0.75),
  { type: "eval", step: 3, policyVersion: 3, metrics: { accuracy: 1, sampled: 0.5 } },
  { type: "ended", state: "completed" },
];

describe("the fold", () => {
  it("supersedes what a resume ran again", () => {
    const run = foldRun(timed(killedAndResumed));
    expect(run.steps.map((event) => event.metrics.reward)).toEqual([0.1, 0.5, 0.75]);
    expect(run.groups.map((event) => [event.groupId, event.outcome])).toEqual([
      ["g1", "trained"],
      ["g2", "trained"],
    ]);
    expect(run.state).toBe("completed");
  });

  it("keeps one eval a step: a resume right there makes it again", () => {
    const evalAt = (accuracy: number): RunEvent => ({ type: "eval", step: 2, policyVersion: 2, metrics: { accuracy } });
    const run = foldRun(timed([evalAt(0.5), { type: "resumed", fromStep: 2, totalSteps: 2 }, evalAt(0.75)]));
    expect(run.evals.map((event) => event.metrics.accuracy)).toEqual([0.75]);
  });

  it("keeps what became of engines, at the step it happened, until a resume supersedes that", () => {
    const engine = (state: "started" | "died"): RunEvent => ({ type: "engine", engine: 0, state });
    const events: RunEvent[] = [engine("started"), step(1, 0), engine("died"), step(2, 0), engine("started")];
    const states = (all: RunEvent[]) => foldRun(timed(all)).engines.map((event) => [event.step, event.state]);
    expect(states(events)).toEqual([
      [0, "started"],
      [1, "died"],
      [2, "started"],
    ]);
    expect(states([...events, { type: "resumed", fromStep: 1, totalSteps: 3 }])).toHaveLength(2);
  });

  it("counts the seconds at work, not those between a death and its resume", () => {
    const events = timed(killedAndResumed).map((event, index) => ({
      ...event,
      time: event.time + (index >= 6 ? 1000 : 0),
    }));
    expect(foldRun(events).seconds).toBe(10); // 11 gaps of one second, one of them the death
  });

  it("gives the summary its figures", () => {
    const summary = summarize(foldRun(timed(killedAndResumed)));
    expect(summary.eval).toEqual({
      before: { step: 0, accuracy: 0.25, sampled: 0.125, loss: null },
      after: { step: 3, accuracy: 1, sampled: 0.5, loss: null },
    });
    expect(summary.reward).toEqual({ first: 0.1, last: 0.75 });
    expect(summary.tokens_trained).toBe(30);
    expect(summary.logprob_gap.mean).toBeCloseTo(0.002, 12);
    expect(summary.logprob_gap.max).toBe(0.03);
    expect(summary.groups).toEqual({ trained: 2, dropped: {}, requeued: 0 });
  });
});

describe("the summary", () => {
  it("takes means over tokens, not over the steps' means", () => {
    const stepOf = (number: number, tokens: number, gap: number) => ({
      ...step(number, 0.5),
      metrics: { tokens_trained: tokens, logprob_gap_mean: gap },
    });
    const { logprob_gap } = summarize(foldRun(timed([stepOf(1, 10, 0.1), stepOf(2, 30, 0.3)])));
    expect(logprob_gap.mean).toBeCloseTo(0.25, 12); // (10 x 0.1 + 30 x 0.3) / 40
  });

  it("adds up groups, tokens and seconds, and lists what health rules found", () => {
    const funnel = (at: number, trained: number): RunEvent => ({
      ...{ type: "funnel", step: at, sessions: 4, calls: 4, turns: 3, rows: 2, sampled: 100, trained },
      ...{ masked: { rejected: 10 }, dropped: { no_signal: 90 - trained } },
    });
    const seconds = { step: 4, wait: 1, train: 2.5, sync: 0.5 };
    const health = { rule: "no_signal", severity: "alarm", message: "m", key: "data.prompt_dataset" } as const;
    const summary = summarize(
      foldRun(
        timed([
          group(1, "trained"),
          { ...group(2, "dropped", "engine"), requeued: true } as RunEvent,
          funnel(1, 50),
          { ...step(1, 0.5), seconds } as RunEvent,
          group(2, "dropped", "no_signal"),
          funnel(2, 30),
          { ...step(2, 0.5), seconds } as RunEvent,
          { type: "health", step: 2, ...health, rolloutIds: ["a/0"] },
        ]),
      ),
    );
    expect(summary.groups).toEqual({ trained: 1, dropped: { engine: 1, no_signal: 1 }, requeued: 1 });
    expect(summary.tokens).toEqual({
      sampled: 200,
      trained: 80,
      masked: { rejected: 20 },
      dropped: { no_signal: 100 },
    });
    expect(summary.step_seconds).toEqual({ step: 8, wait: 2, train: 5, sync: 1 });
    expect(summary).toMatchObject({ binding: "trainer", health: [health] });
  });
});

it("the curve shows evals as greedy and sampled", () => {
  const svg = curveSvg(foldRun(timed(killedAndResumed)));
  expect(svg).toContain("held out, greedy");
  expect(svg).toContain("step (of 3)");
});

describe("sparkline", () => {
  it("scales from 0 to the larger of 1 and the maximum", () => {
    expect(sparkline([0, 0.5, 1])).toBe("▁▅█");
    expect(sparkline([])).toBe("");
    expect(sparkline(Array(100).fill(1), 10)).toBe("█".repeat(10));
  });
});
