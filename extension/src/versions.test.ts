import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { ownVersions, skewOf } from "./versions.ts";

const own = { formats: { recipe: 2, events: 2, live: 2 }, keys: new Set(["run.name", "run.seed"]) };
const runner = (formats: object, keys: string[] | null = [...own.keys]) =>
  skewOf({ version: "0.1.0", formats, keys: keys && new Set(keys) }, own);

const updateRunner = "update the runner: npm install --save-dev molt-runner@latest";
const updateExtension = "update the extension Molt Runner";

describe("how a runner differs", () => {
  test("not at all, known keys or not", () => {
    expect(runner(own.formats)).toEqual([]);
    expect(runner(own.formats, null)).toEqual([]);
  });

  test("an older one: what will not be seen, and that it is the one to update", () => {
    expect(runner({ ...own.formats, events: 1 })).toEqual([
      "its events version is older (1, here 2): some charts stay empty",
      updateRunner,
    ]);
    // Before it said so it was older than any.
    expect(runner({})).toHaveLength(4);
  });

  test("a newer one: the extension is the one to update", () => {
    expect(runner({ ...own.formats, events: 3 })).toEqual([
      "its events version is newer (3, here 2): its runs cannot be read here",
      updateExtension,
    ]);
  });

  test("keys that one of them does not know, by name", () => {
    expect(runner(own.formats, ["run.name"])).toEqual(["it refuses run.seed, which the editor takes", updateRunner]);
    expect(runner(own.formats, [...own.keys, "run.new"])).toEqual([
      "it takes run.new, which the editor flags",
      updateExtension,
    ]);
  });
});

test("the runner of this repository fits the extension", () => {
  const read = (path: string) => JSON.parse(readFileSync(new URL(`../../${path}`, import.meta.url), "utf8"));
  const { version, molt: formats } = read("runner/package.json");
  expect(read("extension/package.json").version).toBe(version);
  expect(skewOf({ version, formats, keys: ownVersions.keys })).toEqual([]);
});
