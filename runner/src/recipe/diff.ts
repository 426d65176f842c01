import { isDeepStrictEqual } from "node:util";
import type { Provenance } from "./resolve.ts";
import { writtenValue } from "./resolved-yaml.ts";
import { type Recipe, recipeKeys } from "./schema.ts";

interface Resolved {
  recipe: Recipe;
  provenance: Map<string, Provenance>;
}

/** Keys whose values differ, in the schema's order, as people may see them: however either recipe writes them. */
export function recipeDiff(before: Resolved, after: Resolved) {
  const rows = [...recipeKeys.keys()].map((key) => {
    const [was, is] = [before, after].map(({ recipe, provenance }) => writtenValue(key, recipe, provenance));
    return { key, before: was, after: is };
  });
  return rows.filter((row) => !isDeepStrictEqual(row.before, row.after));
}
