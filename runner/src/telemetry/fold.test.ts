import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { sparkline } from "./curve.ts";
import type { RunEvent } from "./events.ts";
import { foldRun } from "./fold.ts";
import { EventLog, readEvents } from "./log.ts";
import { summarize, writeSummary } from "./summary.ts";

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
      before: { step: 0, accuracy: 0.25, sampled: 0.125 },
      after: { step: 3, accuracy: 1, sampled: 0.5 },
    });
    expect(summary.reward).toEqual({ first: 0.1, last: 0.75 });
    expect(summary.tokens_trained).toBe(30);
    expect(summary.logprob_gap.mean).toBeCloseTo(0.002, 12);
    expect(summary.logprob_gap.max).toBe(0.03);
    expect(summary.groups).toEqual({ trained: 2, dropped: {}, requeued: 0 });
  });
});

describe("the log", () => {
  it("survives a torn last line: the reader leaves it out, the next writer cuts it off", () => {
    const directory = mkdtempSync(join(tmpdir(), "log-"));
    const path = join(directory, "events.ndjson");
    try {
      const log = new EventLog(path);
      for (const event of killedAndResumed) log.emit(event);
      const whole = readFileSync(path, "utf8");
      appendFileSync(path, '{"type":"step","st');
      expect([...readEvents(path)]).toHaveLength(killedAndResumed.length);
      new EventLog(path);
      expect(readFileSync(path, "utf8")).toBe(whole);
      expect(writeSummary(directory).summary.state).toBe("completed");
      expect(readFileSync(join(directory, "curve.svg"), "utf8")).toContain("held out, greedy");
      writeFileSync(path, "");
      new EventLog(path);
      expect([...readEvents(path)]).toEqual([]);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  it("is read in pieces, whatever a piece cuts through", () => {
    const directory = mkdtempSync(join(tmpdir(), "log-"));
    const path = join(directory, "events.ndjson");
    try {
      const messages = [1, 2, 3].map((count) => "é😀".repeat(150_001 * count));
      const log = new EventLog(path);
      for (const message of messages) log.emit({ type: "warning", message });
      expect([...readEvents(path)].map((event) => event.type === "warning" && event.message)).toEqual(messages);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
});

describe("sparkline", () => {
  it("scales from 0 to the larger of 1 and the maximum", () => {
    expect(sparkline([0, 0.5, 1])).toBe("▁▅█");
    expect(sparkline([])).toBe("");
    expect(sparkline(Array(100).fill(1), 10)).toBe("█".repeat(10));
  });
});
