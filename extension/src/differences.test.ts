import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, expect, it } from "vitest";
import { recipeDifferences } from "./differences.ts";

const recorded = fileURLToPath(new URL("../../runner/test/fixtures/run-1/recipe.yaml", import.meta.url));
let root = "";
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "differences-"));
});
afterEach(() => rmSync(root, { recursive: true }));

/** A run directory whose resolved recipe is the recorded one with some lines written otherwise. */
function run(name: string, lines: Record<string, string> = {}): string {
  const directory = join(root, name);
  mkdirSync(directory);
  // The recorded one was made movable: a run's own has absolute paths.
  let text = readFileSync(recorded, "utf8").replace(/: (?=(runs|recipes)\/)/g, ": /absolute/");
  for (const [key, line] of Object.entries(lines)) {
    expect(text).toMatch(new RegExp(`^ +${key}: `, "m"));
    text = text.replace(new RegExp(`^( +)${key}: .*$`, "m"), `$1${line}`);
  }
  writeFileSync(join(directory, "recipe.yaml"), text);
  return directory;
}

it("names the keys whose values differ, with what gave each, and not what is only written otherwise", () => {
  const runs = [
    run("a"),
    run("b", { seed: "seed: 7  # --run.seed", steps: "steps:   2.0   # by hand" }),
    run("c", { steps: "steps: 9  # recipes/long.yaml:3:9" }),
  ];
  expect(recipeDifferences(runs)).toEqual([
    {
      key: "run.seed",
      values: [
        { value: "0", source: "recipes/quickstart.yaml:7:9" },
        { value: "7", source: "--run.seed" },
        { value: "0", source: "recipes/quickstart.yaml:7:9" },
      ],
    },
    {
      key: "run.steps",
      values: [
        { value: "2", source: "--run.steps" },
        { value: "2", source: "by hand" },
        { value: "9", source: "recipes/long.yaml:3:9" },
      ],
    },
  ]);
});

it("a recipe that is gone is an error that names it", () => {
  expect(() => recipeDifferences([run("a"), join(root, "nowhere")])).toThrow("there is no such recipe");
});
