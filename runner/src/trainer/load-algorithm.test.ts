import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import type { AdvantageEstimator } from "../algorithms/advantages/estimator.ts";
import { advantageEstimators } from "../algorithms/advantages/registry.ts";
import { policyLosses } from "../algorithms/losses/registry.ts";
import { loadAlgorithm } from "./load-algorithm.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-algorithm-"));
// The test runner's own way of writing stacks knows no source maps of what is imported later: Node's does.
const { prepareStackTrace } = Error;
beforeAll(() => {
  Reflect.deleteProperty(Error, "prepareStackTrace");
});
afterAll(() => {
  Error.prepareStackTrace = prepareStackTrace;
  rmSync(folder, { recursive: true });
});

function load(name: string, lines: string[]): Promise<AdvantageEstimator> {
  const file = join(folder, name);
  writeFileSync(file, lines.join("\n"));
  return loadAlgorithm(advantageEstimators, file, "algo.advantage.estimator");
}

const spec = { no_whiten: false, gamma: 1, lam: 1, pass_k: 4 };

test("a file's default export, with what it imports from the library, is the estimator", async () => {
  const estimate = await load("half.ts", [
    'import { type AdvantageEstimator, centred, perGroup } from "molt-runner";',
    "const half: AdvantageEstimator = (rollouts) =>",
    "  perGroup(rollouts, (rewards) => centred(rewards).map((gap) => gap / 2));",
    "export default half;",
  ]);
  const rollouts = [1, 0].map((reward) => ({ groupId: "a", reward, tokens: 1, turns: [{ reward, tokens: 1 }] }));
  expect([...(estimate(rollouts, spec) as Float64Array)]).toEqual([0.25, -0.25]);
});

test("what it throws, when it runs or while it loads, names its own line", async () => {
  const lines = [
    "type Rollouts = unknown[];",
    "export default (rollouts: Rollouts) => {",
    "  return rollouts.none.a;",
    "}",
  ];
  const estimate = await load("throws.ts", lines);
  const thrown = () => estimate([], spec);
  expect(thrown).toThrow("algo.advantage.estimator: Cannot read properties of undefined");
  expect(thrown).toThrow(
    expect.objectContaining({ position: { file: join(folder, "throws.ts"), line: 3, column: 24 } }),
  );
  const loading = load("early.ts", ["", 'throw new Error("too early");', "export default () => [];"]);
  await expect(loading).rejects.toMatchObject({ message: "this file failed while loading: too early" });
  await expect(loading).rejects.toHaveProperty("position.line", 2);
  await expect(load("syntax.ts", ["", "const = 1;"])).rejects.toHaveProperty("position.line", 2);
});

test("an async one that rejects ends no process: its promise is refused where values are wanted", async () => {
  const estimate = await load("async.ts", ['export default async () => { throw new Error("late"); };']);
  const unhandled = vi.fn();
  process.on("unhandledRejection", unhandled);
  expect(estimate([], spec)).toBeInstanceOf(Promise);
  await new Promise((resolve) => setTimeout(resolve, 5));
  process.off("unhandledRejection", unhandled);
  expect(unhandled).not.toHaveBeenCalled();
});

test("what is no function, no file or no name is refused by the key", async () => {
  await expect(load("data.ts", ["export default [1];"])).rejects.toThrow("the default export must be a function");
  const absent = loadAlgorithm(policyLosses, join(folder, "absent.ts"), "actor.loss_mode");
  await expect(absent).rejects.toThrow("actor.loss_mode: this file does not exist");
  const unknown = loadAlgorithm(advantageEstimators, "constructor", "algo.advantage.estimator");
  await expect(unknown).rejects.toThrow("algo.advantage.estimator: no entry 'constructor'");
});
