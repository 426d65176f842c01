import fc from "fast-check";
import { expect, it } from "vitest";
import type { RunEvent } from "../../runner/src/telemetry/events.ts";
import { applyEvent, emptyRun, foldRun } from "../../runner/src/telemetry/fold.ts";
import { chartsOf } from "./charts.ts";
import { changedFrom, RunSeries, rowsOf } from "./series.ts";

const step = (number: number, metrics: Record<string, number>, seconds?: Record<string, number>): RunEvent => {
  return { type: "step", step: number, policyVersion: number, metrics, seconds };
};
const group = (number: number, reason?: string): RunEvent => ({
  ...{ type: "group", groupId: "g", promptId: "p", attempt: 0, epoch: 0, step: number, reason },
  outcome: reason ? "dropped" : "trained",
});
const timed = (events: RunEvent[]) => events.map((event, index) => ({ time: index, ...event }));
const seriesOf = (events: RunEvent[]) => {
  const series = new RunSeries();
  series.replaceFrom(0, rowsOf(foldRun(timed(events))));
  return series;
};
const plain = (series: RunSeries, name: string) => {
  const found = series.get(name);
  return found && [[...found.steps], [...found.values]];
};

it("a run as series: metrics, held-out points, groups, tokens and engines, each over its own steps", () => {
  const series = seriesOf([
    { type: "engine", engine: 1, state: "started" },
    { type: "eval", step: 0, policyVersion: 0, metrics: { accuracy: 0.25 } },
    group(1),
    group(1, "stale"),
    {
      type: "funnel",
      step: 1,
      sessions: 2,
      calls: 2,
      turns: 2,
      rows: 1,
      sampled: 9,
      trained: 5,
      masked: { stale: 1 },
      dropped: { stale: 3 },
    },
    step(1, { reward: 0.5, tokens_trained: 10 }, { step: 4, generate: 1, wait: 1, train: 2, model: 9 }),
    { type: "engine", engine: 1, state: "died" },
    step(2, { reward: 0.75, "info/x": 3 }),
    { type: "engine", engine: 1, state: "restarted" },
  ]);
  expect(plain(series, "reward")).toEqual([
    [1, 2],
    [0.5, 0.75],
  ]);
  expect(plain(series, "info/x")).toEqual([
    [1, 2],
    [Number.NaN, 3],
  ]);
  expect(plain(series, "eval/accuracy")).toEqual([[0], [0.25]]);
  expect(plain(series, "groups/trained")).toEqual([[1], [1]]);
  expect(plain(series, "groups/stale")).toEqual([[1], [1]]);
  expect(plain(series, "tokens/sampled")).toEqual([[1], [9]]);
  expect(plain(series, "tokens/stale")).toEqual([[1], [1]]);
  expect(plain(series, "tokens/dropped/stale")).toEqual([[1], [3]]);
  expect(plain(series, "engine/1")).toEqual([
    [0, 1, 2, 2],
    [1, Number.NaN, 1, 1],
  ]);
  // 10 tokens in 4 s; a rollout ran for 1 of them; the stack's parts are 1 + 2 + the rest of the 4 s.
  expect(plain(series, "tokens_per_second")).toEqual([
    [1, 2],
    [2.5, Number.NaN],
  ]);
  expect(plain(series, "generate_share")![1]![0]).toBe(0.25);
  const parts = ["wait", "train", "store", "eval", "sync", "checkpoint", "other"];
  expect(parts.map((part) => plain(series, `time/${part}`)![1]![0])).toEqual([1, 2, 0, 0, 0, 0, 1]);
  expect([Math.min(...series.ends), Math.max(...series.ends)]).toEqual([0, 2]);
});

it("a page that takes in what changed, event by event, has what the whole run gives, resumed or not", () => {
  const number = fc.integer({ min: 1, max: 6 });
  const event = fc.oneof(
    fc.constant("step" as const),
    fc.constant("skip" as const),
    fc.constant("eval" as const),
    fc.constant("group" as const),
    fc.constant("engine" as const),
    fc.constant("resume" as const),
  );
  fc.assert(
    fc.property(fc.array(fc.tuple(event, number, fc.boolean()), { maxLength: 60 }), (acts) => {
      const [run, series] = [emptyRun(), new RunSeries()];
      let from = Number.POSITIVE_INFINITY;
      for (const [index, [kind, of, flush]] of acts.entries()) {
        const events: Record<typeof kind, RunEvent> = {
          step: step(run.step + 1, { reward: index, ...(of > 3 && { [`info/${of}`]: index }) }, { step: 2, wait: 1 }),
          skip: { type: "step_skipped", step: run.step + 1, reason: "no_trainable_tokens", detail: "" },
          eval: {
            type: "eval",
            step: Math.max(0, run.step - (of % 2)),
            policyVersion: 0,
            metrics: { accuracy: index },
          },
          group: group(run.step + 1, of > 3 ? "stale" : undefined),
          engine: { type: "engine", engine: of, state: of > 3 ? "died" : "started" },
          resume: { type: "resumed", fromStep: Math.max(0, run.step - of), totalSteps: null },
        };
        // An eval of an earlier step than the last one is none that a run makes.
        if (kind === "eval" && events.eval.type === "eval" && events.eval.step < (run.evals.at(-1)?.step ?? 0))
          continue;
        const [now] = timed([events[kind]]);
        applyEvent(run, now!);
        from = Math.min(from, changedFrom(now!, run));
        if (!flush) continue;
        series.replaceFrom(from, rowsOf(run, from));
        from = Number.POSITIVE_INFINITY;
      }
      if (from < Number.POSITIVE_INFINITY) series.replaceFrom(from, rowsOf(run, from));
      const whole = new RunSeries();
      whole.replaceFrom(0, rowsOf(run));
      for (const name of whole.names) {
        // An engine's line has a point at each step that was the last one for a while.
        if (name.startsWith("engine/")) expect(plain(series, name)![1]!.at(-1)).toEqual(plain(whole, name)![1]!.at(-1));
        else expect(plain(series, name), name).toEqual(plain(whole, name));
      }
      for (const name of series.names.filter((one) => !whole.names.includes(one))) {
        expect(series.get(name)!.values.every(Number.isNaN), name).toBe(true);
      }
    }),
  );
});

it("each metric is in one chart, the stack and the engines are one each, and what nobody knows is there too", () => {
  const names = [
    "reward",
    "eval/pass",
    "time/wait",
    "time/train",
    "engine/0",
    "engine/1",
    "info/x",
    "stop/length",
    "brand_new",
    "tokens/dropped/stale",
  ];
  expect(chartsOf(names).map(({ title, charts }) => [title, ...charts.map((chart) => chart.key)])).toEqual([
    ["Learning", "reward", "eval/pass"],
    ["Rollouts", "stop/length"],
    ["Speed and queue", "time/", "engine/"],
    ["Groups and tokens", "tokens/dropped/stale"],
    ["What agents report", "info/x"],
    ["Other metrics", "brand_new"],
  ]);
  const anything = fc.array(fc.constantFrom("reward", "eval/a", "info/b", "x", "loss", "stop/eos", "groups/stale"));
  fc.assert(
    fc.property(anything, (given) => {
      const keys = chartsOf(given).flatMap(({ charts }) => charts.map(({ key }) => key));
      expect(keys.sort()).toEqual([...new Set(given)].sort());
    }),
  );
});
