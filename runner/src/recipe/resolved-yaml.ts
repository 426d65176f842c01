import { stringify } from "yaml";
import { formatPosition } from "../errors.ts";
import { positionOf } from "./diagnostic.ts";
import type { Provenance } from "./resolve.ts";
import { nest, type Recipe, recipeKeys, valueAt } from "./schema.ts";

/** Every value of a recipe with where it comes from beside it; loads back to the same values from any folder. */
export function resolvedYaml(recipe: Recipe, provenance: Map<string, Provenance>): string {
  const entries = [...recipeKeys.keys()].map((key) => {
    return { key, value: writtenValue(key, recipe, provenance), source: formatProvenance(provenance.get(key)!) };
  });
  return nestedYaml(entries);
}

/** Keys below their sections, each on a line with its source as a comment; in the schema's order. */
export function nestedYaml(entries: { key: string; value: unknown; source: string }[]): string {
  const lines: string[] = [];
  let open: string[] = [];
  for (const { key, value, source } of entries) {
    const names = key.split(".");
    const sections = names.slice(0, -1);
    const shared = sections.findIndex((name, depth) => open[depth] !== name);
    for (let depth = shared < 0 ? sections.length : shared; depth < sections.length; depth++) {
      lines.push(`${"  ".repeat(depth)}${sections[depth]}:`);
    }
    open = sections;
    lines.push(`${"  ".repeat(sections.length)}${names.at(-1)}: ${inlineYaml(value)}  # ${source}`);
  }
  return `${lines.join("\n")}\n`;
}

/** As people may see it: what comes from the environment stays there, a secret with it. */
export function writtenValue(key: string, recipe: Recipe, provenance: Map<string, Provenance>): unknown {
  return provenance.get(key)?.written ?? valueAt(recipe, key);
}

/** A recipe with each value as people may see it. */
export function writtenRecipe(recipe: Recipe, provenance: Map<string, Provenance>): unknown {
  return nest([...recipeKeys.keys()].map((key) => [key, writtenValue(key, recipe, provenance)]));
}

/** On one line whatever its length; text in double quotes where YAML would read something else. */
export function inlineYaml(value: unknown): string {
  // A plain text in a list would end at a comma or a bracket.
  const item = (it: unknown) => (typeof it === "string" ? JSON.stringify(it) : inlineYaml(it));
  if (Array.isArray(value)) return `[${value.map(item).join(", ")}]`;
  return stringify(value, { lineWidth: 0, blockQuote: false }).trimEnd();
}

export function formatProvenance({ place }: Provenance): string {
  return place === undefined ? "default" : formatPosition(positionOf(place));
}
