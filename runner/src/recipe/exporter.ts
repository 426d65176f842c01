import { readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import type { Verb } from "./guardrails/index.ts";
import { disk, inferVerb } from "./load.ts";
import { Resolution } from "./resolve.ts";

const maxDepth = 3;

export interface Exporter {
  /** The recipe that exports the folder. */
  file: string;
  verb: Verb;
}

/** The recipe beside or below `recipeFile` whose `ckpt.output_dir` is `folder`. */
export function findExporter(folder: string, recipeFile: string): Exporter | undefined {
  for (const file of yamlFiles(dirname(resolve(recipeFile)), maxDepth)) {
    if (file === resolve(recipeFile)) continue;
    const { recipe } = new Resolution(disk.readFile(file) ?? "", file, {}, disk);
    if (recipe.ckpt.output_dir === folder) return { file, verb: inferVerb(recipe) };
  }
  return undefined;
}

function yamlFiles(folder: string, depth: number): string[] {
  const entries = readdirSync(folder, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1));
  // A run's directory keeps a resolved copy of the recipe it came from.
  if (entries.some(({ name }) => name === "events.ndjson")) return [];
  return entries.flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isFile()) return /\.ya?ml$/.test(entry.name) ? [path] : [];
    const skipped = !entry.isDirectory() || entry.name.startsWith(".") || entry.name === "node_modules";
    return skipped || depth === 0 ? [] : yamlFiles(path, depth - 1);
  });
}
