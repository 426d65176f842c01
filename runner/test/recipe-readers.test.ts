import { describe, expect, it } from "vitest";
import { recipeKeys } from "../src/recipe/index.ts";
import { recipePaths } from "./recipe-readers.ts";
import { files, read } from "./tree.ts";

const readers = files.filter((path) => /^runner\/src\/(?!recipe\/).*(?<!\.test)\.ts$/.test(path));
const paths = new Set(readers.flatMap((path) => [...recipePaths(path, read(path))]));
const unread = (keys: Iterable<string>) => [...keys].filter((key) => !paths.has(key));

describe("recipe keys", () => {
  it("are each read by code outside recipe/", () => {
    expect(unread(recipeKeys.keys())).toEqual([]);
    expect(unread([...recipeKeys.keys(), "rollout.new_key"])).toEqual(["rollout.new_key"]);
  });
});

describe("what counts as reading a key", () => {
  it.each([
    ["a member of a parameter", "function f(it: Recipe) { return it.actor.adam.lr; }", "actor.adam.lr"],
    ["a parameter taken apart", "const f = ({ data: { max_len: n } }: Recipe) => n;", "data.max_len"],
    ["a property called recipe", "f(this.options.recipe.run.seed);", "run.seed"],
    ["a constant, and one of it", "const { recipe } = o; const { eval: e } = recipe; f(e.steps);", "eval.steps"],
    ["with an assertion", "const path = o.recipe.train!.agent_path!;", "train.agent_path"],
  ])("%s", (_, code, key) => {
    expect([...recipePaths("it.ts", code)]).toContain(key);
  });

  it.each([
    ["a name alone", "const { max_len } = other; f(max_len, data.max_len);", "data.max_len"],
    ["the whole section", "function f(it: Recipe) { return { ...it.data }; }", "data.max_len"],
    ["another object's section", "const { data } = response; f(data.max_len);", "data.max_len"],
    ["a name that an inner block gives away", "function f(r: Recipe) { { const r = 1; f(r.run.seed); } }", "run.seed"],
    ["text", 'f("recipe.run.seed"); // recipe.run.seed', "run.seed"],
  ])("not %s", (_, code, key) => {
    expect([...recipePaths("it.ts", code)]).not.toContain(key);
  });
});
