import { describe, expect, test } from "vitest";
import { splitArguments } from "./flags.ts";
import { recipeKeys } from "./schema.ts";
import { checkValue, parseText } from "./values.ts";

const read = (key: string, text: string) => checkValue(recipeKeys.get(key)!, parseText(recipeKeys.get(key)!, text));

describe("flags are the recipe's keys", () => {
  test("in either form, before and after the recipe; a switch needs no value", () => {
    const words = "--run.steps 3 r.yaml --actor.adam.lr=1e-3 --eval.steps -1 --eval.sampled --run.seed 1";
    expect(splitArguments(words.split(" "))).toEqual({
      positionals: ["r.yaml"],
      flags: {
        "run.steps": "3",
        "actor.adam.lr": "1e-3",
        "eval.steps": "-1",
        "eval.sampled": "true",
        "run.seed": "1",
      },
    });
    expect(splitArguments(["--eval.sampled", "r.yaml"])).toEqual({
      positionals: ["r.yaml"],
      flags: { "eval.sampled": "true" },
    });
    expect(splitArguments(["--eval.sampled", "false"]).flags).toEqual({ "eval.sampled": "false" });
  });

  test.each([
    [["--run.steps"], "--run.steps needs a value: an integer of at least 1 or null"],
    [["--run.steps", "--json"], "--run.steps needs a value: an integer of at least 1 or null"],
    [["--run.seed", "1", "--run.seed=2"], "--run.seed is given twice"],
    [["--run.stpes", "1"], "unknown flag '--run.stpes': did you mean '--run.steps'?"],
    [["--lr", "1"], "unknown flag '--lr': did you mean '--actor.adam.lr'?"],
    [["--actor.lrr", "1"], "unknown flag '--actor.lrr': did you mean '--actor.adam.lr'?"],
    [["--jsn"], "unknown flag '--jsn': did you mean '--json'?"],
    [["-run.seed", "1"], "unknown flag '-run.seed': did you mean '--run.seed'?"],
    [["--qqqqqqqq"], "unknown flag '--qqqqqqqq'\n  fix: flags are the recipe's keys, such as --run.steps 100"],
  ])("%j", (words, message) => {
    let text = "";
    try {
      splitArguments(words);
    } catch (error) {
      text = (error as { format(): string }).format();
    }
    expect(text).toBe(message);
  });
});

describe("text from a flag becomes what YAML would read", () => {
  test.each([
    ["actor.adam.lr", "1e-3", 0.001],
    ["actor.adam.betas", "0.9,0.99", [0.9, 0.99]],
    ["actor.adam.betas", "[0.9, 0.99]", [0.9, 0.99]],
    ["data.prompt_dataset", "a.jsonl", "a.jsonl"],
    ["data.prompt_dataset", "a.jsonl,sub/b.parquet", ["a.jsonl", "sub/b.parquet"]],
    ["data.prompt_dataset", '["a,b.jsonl"]', ["a,b.jsonl"]],
    ["data.prompt_probs", "0.7,2", [0.7, 2]],
    ["run.steps", "null", null],
    ["run.name", "007", "007"],
    ["data.input_key", "true", "true"],
    ["data.label_key", "null", null],
    ["eval.at_start", "false", false],
    ["train.agent_path", "a: b, [c].ts", "a: b, [c].ts"],
  ])("%s %s", (key, text, value) => {
    expect(read(key, text)).toEqual({ value });
  });

  test("and is refused as the value it is", () => {
    expect(read("actor.adam.betas", "0.9")).toMatchObject({ problem: expect.stringContaining("not [ 0.9 ]") });
    expect(read("data.prompt_probs", "1,0")).toMatchObject({
      problem: "data.prompt_probs must be a list of numbers above 0 or null, not '1,0'",
    });
    expect(read("run.steps", "")).toMatchObject({ problem: expect.stringContaining("not ''") });
    expect(read("data.label_key", "#x")).toEqual({ value: "#x" });
    expect(read("rollout.temperature", "hot")).toEqual({
      problem: "rollout.temperature must be a number of at least 0, not 'hot'",
      meant: undefined,
    });
  });
});
