import { expect, it } from "vitest";
import { resolved } from "../../lsp/src/service/resolved.ts";
import type { TimedEvent } from "../../runner/src/telemetry/events.ts";
import { emptyRun, foldRun } from "../../runner/src/telemetry/fold.ts";
import { alarmLines, valueLines } from "./live-lines.ts";

const text = `# molt-runner
actor:
  model_name_or_path: model
  adam: { lr: 1e-3, betas: [0.9, 0.95] }
  max_norm: 1.0
rollout:
  max_new_tokens: 8
algo:
  kl: { init_coef: 0.1 }
train: { agent_path: agent.ts, max_staleness: 2 }
eval: { dataset: held.jsonl }
`;
const document = { uri: "file:///p/recipe.yaml", path: "/p/recipe.yaml", text };
const { places } = resolved(document, { readFile: () => undefined })!;

const step = (number: number, metrics: Record<string, number>): TimedEvent => ({
  time: number,
  type: "step",
  step: number,
  policyVersion: number,
  metrics,
});
const health = (
  number: number,
  rule: string,
  key: string | undefined,
  severity: "alarm" | "advice" = "alarm",
): TimedEvent => ({
  time: number,
  type: "health",
  step: number,
  rule,
  severity,
  message: `${rule} holds`,
  key,
  rolloutIds: ["a@0/1"],
});

it("shows over each line what the newest step and evaluation have of the metrics that its keys move", () => {
  const run = foldRun([
    step(1, { lr: 0.5, grad_norm: 9 }),
    { time: 1, type: "eval", step: 1, policyVersion: 1, metrics: { accuracy: 0.25 } },
    step(2, { lr: 0.001, grad_norm: 2.5, policy_kl: 0, response_length: 5.5, "turn/length": 0.125, staleness_mean: 1 }),
  ]);
  // Lines from 0, by hand.
  expect(valueLines(run, places).sort((one, other) => one.line - other.line)).toEqual([
    { line: 3, text: "lr 0.001  grad_norm 2.500  policy_kl 0.000" },
    { line: 4, text: "grad_norm 2.500" },
    { line: 6, text: "response_length 5.500  turn/length 0.125" },
    { line: 8, text: "policy_kl 0.000" },
    { line: 9, text: "staleness_mean 1.000" },
    { line: 10, text: "accuracy 0.250" },
  ]);
  expect(valueLines(emptyRun(), places)).toEqual([]);
});

it("puts the newest alarm of each rule on the value at fault, with its step, key and evidence", () => {
  const events = [health(3, "gradient_spike", "actor.adam.lr"), health(60, "gradient_spike", "actor.adam.lr")];
  const run = foldRun([
    ...events,
    health(61, "truncation", "rollout.max_new_tokens"),
    health(62, "engine_idle", "engine.count", "advice"),
    health(5, "no_signal", undefined),
    step(64, {}),
  ]);
  const alarms = alarmLines(run, places);
  expect(alarms.map(({ rule, severity, range, message }) => [rule, severity, range.start.line, message])).toEqual([
    ["gradient_spike", "alarm", 3, "gradient_spike holds (step 60: look at actor.adam.lr)"],
    ["truncation", "alarm", 6, "truncation holds (step 61: look at rollout.max_new_tokens)"],
    // Nobody set it here.
    ["engine_idle", "advice", 0, "engine_idle holds (step 62: look at engine.count)"],
  ]);
  expect(alarms[0]!.range).toEqual({ start: { line: 3, character: 14 }, end: { line: 3, character: 18 } });
  expect(alarms[0]!.rolloutIds).toEqual(["a@0/1"]);
});

it("forgets what a resumed run has left behind", () => {
  const run = foldRun([
    health(60, "truncation", undefined),
    { time: 61, type: "resumed", fromStep: 50, totalSteps: null },
  ]);
  expect(alarmLines(run, places)).toEqual([]);
});
