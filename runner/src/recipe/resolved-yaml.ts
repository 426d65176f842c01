import { stringify } from "yaml";
import { formatPosition } from "../errors.ts";
import type { Provenance } from "./resolve.ts";
import { type Recipe, recipeKeys } from "./schema.ts";

/** Every value of a recipe with where it comes from beside it; loads back to the same values from any folder. */
export function resolvedYaml(recipe: Recipe, provenance: Map<string, Provenance>): string {
  const lines: string[] = [];
  let open: string[] = [];
  for (const key of recipeKeys.keys()) {
    const names = key.split(".");
    const sections = names.slice(0, -1);
    const shared = sections.findIndex((name, depth) => open[depth] !== name);
    for (let depth = shared < 0 ? sections.length : shared; depth < sections.length; depth++) {
      lines.push(`${"  ".repeat(depth)}${sections[depth]}:`);
    }
    open = sections;
    const source = provenance.get(key)!;
    const value = source.written ?? valueAt(recipe, names);
    lines.push(`${"  ".repeat(sections.length)}${names.at(-1)}: ${inline(value)}  # ${explain(source)}`);
  }
  return `${lines.join("\n")}\n`;
}

export function valueAt(recipe: Recipe, names: string[]): unknown {
  return names.reduce<unknown>((value, name) => (value as Record<string, unknown>)[name], recipe);
}

/** On one line whatever its length; text in double quotes where YAML would read something else. */
function inline(value: unknown): string {
  // A plain text in a list would end at a comma or a bracket.
  const item = (it: unknown) => (typeof it === "string" ? JSON.stringify(it) : inline(it));
  if (Array.isArray(value)) return `[${value.map(item).join(", ")}]`;
  return stringify(value, { lineWidth: 0, blockQuote: false }).trimEnd();
}

function explain({ kind, position }: Provenance): string {
  return kind === "default" ? "default" : formatPosition(position!);
}
