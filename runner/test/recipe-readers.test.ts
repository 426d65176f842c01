import { describe, expect, it } from "vitest";
import { recipeReads } from "../src/code/recipe-readers.ts";
import { parseModule } from "../src/code/syntax.ts";
import { recipeKeys } from "../src/recipe/index.ts";
import { files, read } from "./tree.ts";

const recipePaths = (code: string) => recipeReads(parseModule(code)!).map(({ key }) => key);
const pathsReadBy = (readers: RegExp) => {
  const sources = files.filter((path) => readers.test(path) && !path.endsWith(".test.ts"));
  return new Set(sources.flatMap((path) => recipePaths(read(path))));
};
// Whoever starts processes does it by the planner's placement.
const runs = pathsReadBy(/^runner\/src\/((?!recipe\/).*|recipe\/planner\/placement)\.ts$/);
const plans = pathsReadBy(/^runner\/src\/recipe\/planner\/.*\.ts$/);
const unread = (keys: Iterable<string>) =>
  [...keys].filter((key) => !(recipeKeys.get(key)?.planned ? plans : runs).has(key));

describe("recipe keys", () => {
  it("are each read by code outside recipe/, those that are planned by the planner", () => {
    expect(unread(recipeKeys.keys())).toEqual([]);
    expect(unread([...recipeKeys.keys(), "rollout.new_key"])).toEqual(["rollout.new_key"]);
  });

  it("that a run reads are not called planned", () => {
    expect([...recipeKeys.values()].filter(({ key, planned }) => planned && runs.has(key))).toEqual([]);
  });
});

describe("what counts as reading a key", () => {
  it.each([
    ["a member of a parameter", "function f(it: Recipe) { return it.actor.adam.lr; }", "actor.adam.lr"],
    ["a parameter taken apart", "const f = ({ data: { max_len: n } }: Recipe) => n;", "data.max_len"],
    ["a property called recipe", "f(this.options.recipe.run.seed);", "run.seed"],
    ["a constant, and one of it", "const { recipe } = o; const { eval: e } = recipe; f(e.steps);", "eval.steps"],
    ["a section's type", 'const f = ({ adam: { lr } }: Recipe["actor" | "critic"]) => lr;', "critic.adam.lr"],
    ["a type within it", 'const f = (it: Recipe["algo"]["kl"]) => it.estimator;', "algo.kl.estimator"],
    ["with an assertion", "const path = o.recipe.train!.agent_path!;", "train.agent_path"],
  ])("%s", (_, code, key) => {
    expect(recipePaths(code)).toContain(key);
  });

  it.each([
    ["a name alone", "const { max_len } = other; f(max_len, data.max_len);", "data.max_len"],
    ["the whole section", "function f(it: Recipe) { return { ...it.data }; }", "data.max_len"],
    ["another object's section", "const { data } = response; f(data.max_len);", "data.max_len"],
    ["a name that an inner block gives away", "function f(r: Recipe) { { const r = 1; f(r.run.seed); } }", "run.seed"],
    ["text", 'f("recipe.run.seed"); // recipe.run.seed', "run.seed"],
  ])("not %s", (_, code, key) => {
    expect(recipePaths(code)).not.toContain(key);
  });
});
