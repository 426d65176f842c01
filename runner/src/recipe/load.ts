import { existsSync, readFileSync, statSync } from "node:fs";
import { resolve } from "node:path";
import { fileError } from "../errors.ts";
import { type Diagnostic, displayPath, RecipeError } from "./diagnostic.ts";
import type { ParsedYaml } from "./document.ts";
import type { Finding, Verb } from "./guardrails/index.ts";
import { type Provenance, Resolution, type Sources } from "./resolve.ts";
import type { Recipe } from "./schema.ts";

/** The file system and this process's environment. */
export const disk: Sources = {
  readFile: (path) => (existsSync(path) && statSync(path).isFile() ? readFileSync(path, "utf8") : undefined),
  environment: process.env,
};

/**
 * Throws one `RecipeError` that lists everything wrong; to `launch`, what only `plan` knows is wrong too. `verb`
 * defaults to what the recipe looks made for.
 */
export function loadRecipe(
  path: string,
  { flags = {}, verb, launch = false }: { flags?: Record<string, string>; verb?: Verb; launch?: boolean } = {},
): EditedRecipe {
  const resolution = readRecipe(path, flags);
  const { recipe, provenance } = resolution;
  const resolvedVerb = verb ?? inferVerb(recipe);
  const diagnostics = resolution.judge(resolvedVerb).map((found): Diagnostic => {
    return launch && found.rule === "planned" ? { ...found, severity: "error" } : found;
  });
  if (diagnostics.some(({ severity }) => severity === "error")) throw new RecipeError(diagnostics);
  const place = (finding: Finding) => resolution.diagnosticOf(finding);
  return { recipe, provenance, diagnostics, verb: resolvedVerb, place };
}

/** A recipe of the disk as far as it can be read; its `judge` says what is wrong. */
export function readRecipe(path: string, flags: Record<string, string>): Resolution {
  const text = disk.readFile(resolve(path));
  if (text !== undefined) return new Resolution(text, path, flags, disk);
  const why = existsSync(path) ? "this is not a file" : "there is no such recipe";
  throw fileError(displayPath(resolve(path)), why, "name a recipe's YAML file");
}

/** A recipe whose verb is known: of a file, or of a text as an editor has it, read as far as it can be. */
export interface EditedRecipe {
  recipe: Recipe;
  /** By dotted key, every key. */
  provenance: Map<string, Provenance>;
  /** All that is wrong; of a recipe that `loadRecipe` returns, warnings and information. */
  diagnostics: Diagnostic[];
  verb: Verb;
  /** What a plan finds, at its place. */
  place(finding: Finding): Diagnostic;
}

/**
 * What an editor shows for `text`. What is wrong in a parent recipe is shown at `extends`; a variable that is not set
 * here may be where the recipe will run.
 */
export function readEdited(
  text: string,
  filePath: string,
  sources: Partial<Sources> = {},
  parsed?: ParsedYaml,
): EditedRecipe {
  const resolution = new Resolution(text, filePath, {}, { ...disk, ...sources }, parsed);
  const { recipe, provenance } = resolution;
  const verb = inferVerb(recipe);
  const diagnostics = resolution.judge(verb).map((diagnostic): Diagnostic => {
    const shown = resolution.inFile(diagnostic);
    return diagnostic.code === "environment" ? { ...shown, severity: "warning" } : shown;
  });
  const place = (finding: Finding) => resolution.inFile(resolution.diagnosticOf(finding));
  return { recipe, provenance, verb, diagnostics, place };
}

export function diagnose(text: string, filePath: string, sources: Partial<Sources> = {}): Diagnostic[] {
  return readEdited(text, filePath, sources).diagnostics;
}

/** A recipe with a reply column and no agent is for `sft`, any other for `run`. */
export function inferVerb({ data, train }: Recipe): Verb {
  return data.output_key !== null && train.agent_path === null && train.agent_command === null ? "sft" : "run";
}
