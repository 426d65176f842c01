import { readFileSync } from "node:fs";
import { join } from "node:path";
import { recipeDiff } from "../../runner/src/recipe/diff.ts";
import { readRecipe } from "../../runner/src/recipe/load.ts";
import { inlineYaml, writtenValue } from "../../runner/src/recipe/resolved-yaml.ts";

/** A key whose value is not the same in all runs; the values are in the runs' order. */
export interface Difference {
  key: string;
  /** As YAML, and what gave it: `recipes/quickstart.yaml:7:9`, `--run.seed`, `default`. */
  values: { value: string; source: string }[];
}

/** What differs between the resolved recipes of two or more run directories: by value, however they are written. */
export function recipeDifferences(directories: string[]): Difference[] {
  const recipes = directories.map(readRecorded);
  const [first, ...others] = recipes;
  const keys = new Set(others.flatMap((other) => recipeDiff(first!, other).map(({ key }) => key)));
  return [...first!.provenance.keys()]
    .filter((key) => keys.has(key))
    .map((key) => ({
      key,
      values: recipes.map((one) => ({
        value: inlineYaml(writtenValue(key, one.recipe, one.provenance)),
        source: one.sourceOf(key),
      })),
    }));
}

function readRecorded(directory: string) {
  const path = join(directory, "recipe.yaml");
  const { recipe, provenance } = readRecipe(path, {});
  const lines = readFileSync(path, "utf8").split("\n");
  // A resolved recipe says beside each value where that comes from.
  const sourceOf = (key: string) => {
    const place = provenance.get(key)?.place;
    return (place && lines[place.range.start.line]?.split("  # ").at(-1)) ?? "default";
  };
  return { recipe, provenance, sourceOf };
}
