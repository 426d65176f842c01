import { existsSync, readFileSync, statSync } from "node:fs";
import { resolve } from "node:path";
import { usageError } from "../errors.ts";
import { type Diagnostic, displayPath, RecipeError } from "./diagnostic.ts";
import type { Verb } from "./guardrails/index.ts";
import { type Provenance, Resolution, type Sources } from "./resolve.ts";
import type { Recipe } from "./schema.ts";

export interface LoadedRecipe {
  recipe: Recipe;
  /** By dotted key, every key. */
  provenance: Map<string, Provenance>;
  /** What is left when nothing is wrong: warnings. */
  diagnostics: Diagnostic[];
}

/** The file system and this process's environment. */
export const disk: Sources = {
  readFile: (path) => (existsSync(path) && statSync(path).isFile() ? readFileSync(path, "utf8") : undefined),
  environment: process.env,
};

/** Throws one `RecipeError` that lists everything wrong. `verb` defaults to what the recipe looks made for. */
export function loadRecipe(
  path: string,
  { flags = {}, verb }: { flags?: Record<string, string>; verb?: Verb } = {},
): LoadedRecipe & { verb: Verb } {
  const text = disk.readFile(resolve(path));
  if (text === undefined) {
    const why = existsSync(path) ? "this is not a file" : "there is no such recipe";
    throw usageError(why, { position: { file: displayPath(resolve(path)) }, fix: "name a recipe's YAML file" });
  }
  const resolution = new Resolution(text, path, flags, disk);
  const { recipe, provenance } = resolution;
  const resolvedVerb = verb ?? inferVerb(recipe);
  const diagnostics = resolution.judge(resolvedVerb);
  if (diagnostics.some(({ severity }) => severity === "error")) throw new RecipeError(diagnostics);
  return { recipe, provenance, diagnostics, verb: resolvedVerb };
}

/**
 * What an editor shows for `text`. What is wrong in a parent recipe is shown at `extends`; a variable that is not set
 * here may be where the recipe will run.
 */
export function diagnose(text: string, filePath: string, sources: Partial<Sources> = {}): Diagnostic[] {
  const resolution = resolveText(text, filePath, sources);
  return resolution.judge(inferVerb(resolution.recipe)).map((diagnostic) => {
    const shown = resolution.inFile(diagnostic);
    return diagnostic.code === "environment" ? { ...shown, severity: "warning" } : shown;
  });
}

/** The verb that `text` looks made for, as far as it can be read. */
export function inferVerbOfText(text: string, filePath: string, sources: Partial<Sources> = {}): Verb {
  return inferVerb(resolveText(text, filePath, sources).recipe);
}

function resolveText(text: string, filePath: string, sources: Partial<Sources>): Resolution {
  return new Resolution(text, filePath, {}, { ...disk, ...sources });
}

/** A recipe with a reply column and no agent is for `sft`, any other for `run`. */
export function inferVerb({ data, train }: Recipe): Verb {
  return data.output_key !== null && train.agent_path === null ? "sft" : "run";
}
