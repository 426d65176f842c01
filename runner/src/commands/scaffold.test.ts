import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { root } from "../../test/tree.ts";
import type { AdvantageEstimator } from "../algorithms/advantages/estimator.ts";
import type { PolicyLoss } from "../algorithms/losses/policy-loss.ts";
import { checkRecipe } from "../recipe/check.ts";
import { loadFunction, tensorOf } from "../testing.ts";
import { scaffoldCommand } from "./scaffold.ts";

const templates = new URL("../../templates/algorithms/", import.meta.url);
let folder: string;
let said: string[];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "molt-scaffold-"));
  said = [];
  vi.spyOn(process, "cwd").mockReturnValue(folder);
  vi.spyOn(console, "log").mockImplementation((text: string) => said.push(text));
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(folder, { recursive: true });
});

const read = (path: string) => readFileSync(join(folder, path), "utf8");

test("in a folder with a recipe: file, test and the recipe's line; both run at once", async () => {
  writeFileSync(join(folder, "recipe.yaml"), "# mine\nalgo:\n  # as in the paper\n  dynamic_filtering: drop\n");
  scaffoldCommand("estimator", "my_mean", templates);
  scaffoldCommand("loss", "plain", templates);
  expect(said).toEqual([
    "my-mean.ts",
    "my-mean.test.mjs",
    "recipe.yaml",
    "algo.advantage.estimator: ./my-mean.ts",
    "plain.ts",
    "plain.test.mjs",
    "recipe.yaml",
    "actor.loss_mode: ./plain.ts",
  ]);
  expect(read("recipe.yaml")).toBe(
    "# mine\nalgo:\n  # as in the paper\n  dynamic_filtering: drop\n  advantage:\n    estimator: ./my-mean.ts\n" +
      "actor:\n  loss_mode: ./plain.ts\n",
  );
  expect(read("my-mean.test.mjs")).toContain('new URL("./my-mean.ts", import.meta.url)');
  const estimate = await loadFunction<AdvantageEstimator>(join(folder, "my-mean.ts"));
  const rollouts = [1, 0].map((reward) => ({ groupId: "a", reward, tokens: 1, turns: [] }));
  // By hand.
  const spec = { no_whiten: false, gamma: 1, lam: 1, pass_k: 4 };
  expect(Array.from(estimate(rollouts, spec))).toEqual([0.5, -0.5]);
  const loss = await loadFunction<PolicyLoss>(join(folder, "plain.ts"));
  const logp = await tensorOf([-1, -2]);
  const input = { logp, old: logp, advantages: await tensorOf([1, -3]), rowLogRatio: logp };
  expect([...(await loss(input, {} as never).loss.data())]).toEqual([-1, 3]);
});

test("of a recipe that names one, only that name changes", () => {
  const text = "actor: { adam: { lr: 1.0e-3, betas: [0.9, 0.95] } } # mine\nalgo:\n  advantage: { estimator: grpo }\n";
  writeFileSync(join(folder, "recipe.yaml"), text);
  scaffoldCommand("estimator", "my_mean", templates);
  expect(read("recipe.yaml")).toBe(text.replace("grpo", "./my-mean.ts"));
});

test("of a recipe whose key has no value yet, the value is one of its own", () => {
  writeFileSync(join(folder, "recipe.yaml"), "algo:\n  advantage:\n    estimator:\n");
  scaffoldCommand("estimator", "my_mean", templates);
  expect(read("recipe.yaml")).toBe("algo:\n  advantage:\n    estimator: ./my-mean.ts\n");
});

test("in a checkout: file, test and the registry's line", () => {
  const room = "runner/src/algorithms/advantages";
  mkdirSync(join(folder, room), { recursive: true });
  cpSync(join(root, room, "registry.ts"), join(folder, room, "registry.ts"));
  scaffoldCommand("estimator", "my_mean", templates);
  const registry = read(`${room}/registry.ts`);
  expect(registry).toMatch(/^import { myMean } from "\.\/my-mean\.ts";\n/);
  expect(registry).toMatch(/on_policy_distill: onPolicyDistill, my_mean: myMean };\n/);
  expect(read(`${room}/my-mean.ts`)).toContain('from "./estimator.ts"');
  expect(read(`${room}/my-mean.ts`)).toContain("export const myMean: AdvantageEstimator");
  const own = read(`${room}/my-mean.test.ts`);
  expect(own).toContain('import { test } from "vitest";\nimport { myMean } from "./my-mean.ts";');
  expect(own).not.toContain("molt-runner");
});

test("nothing is overwritten; other kinds, names and folders are refused", () => {
  const refused = (kind: string, name: string) => () => scaffoldCommand(kind, name, templates);
  expect(refused("agents", "a")).toThrow("init knows agent, estimator and loss, not 'agents'");
  expect(refused("loss", "My-Loss")).toThrow("'My-Loss' must be of small letters, digits and _");
  writeFileSync(join(folder, "mine.test.mjs"), "kept");
  expect(refused("loss", "mine")).toThrow("mine.test.mjs is there already");
  expect(refused("loss", "other")).toThrow("no recipe.yaml is here to name it in");
  writeFileSync(join(folder, "recipe.yaml"), "actor: 3\n");
  expect(refused("loss", "other")).toThrow("recipe.yaml has no place for actor.loss_mode");
  expect(readdirSync(folder).sort()).toEqual(["mine.test.mjs", "recipe.yaml"]);
  expect(read("mine.test.mjs") + read("recipe.yaml")).toBe("keptactor: 3\n");
});

test("a second time it refuses, and the first stays as it is", () => {
  writeFileSync(join(folder, "recipe.yaml"), "# nothing yet\n");
  scaffoldCommand("loss", "mine", templates);
  writeFileSync(join(folder, "mine.ts"), "changed since");
  expect(() => scaffoldCommand("loss", "mine", templates)).toThrow("mine.ts is there already");
  expect(read("mine.ts")).toBe("changed since");
});

test("check says what is wrong with a recipe's file, at the file's line", async () => {
  vi.restoreAllMocks(); // files are named from where the command really runs
  const template = join(root, "runner/templates/agent");
  writeFileSync(join(folder, "broken.ts"), "\nexport defalt 1;\n");
  const flags = { "algo.advantage.estimator": join(folder, "broken.ts"), "actor.loss_mode": join(folder, "none.ts") };
  const checked = checkRecipe(join(template, "recipe.yaml"), { mode: "check", flags });
  await expect(checked).rejects.toThrow('algo.advantage.estimator: Unexpected "defalt"');
  await expect(checked).rejects.toThrow("actor.loss_mode");
  await expect(checked).rejects.toHaveProperty("position.line", 2);
});
