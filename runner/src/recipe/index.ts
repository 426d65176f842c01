/** The recipe service: commands, the language server and tools read a recipe through this. */
export { type Arithmetic, arithmetic } from "./arithmetic.ts";
export { type Diagnostic, type Fix, formatDiagnostic, type Range, RecipeError } from "./diagnostic.ts";
export { type Finding, guardrails, type Verb } from "./guardrails/index.ts";
export { diagnose, inferVerb, inferVerbOfText, type LoadedRecipe, loadRecipe } from "./load.ts";
export type { Provenance, Sources } from "./resolve.ts";
export { resolvedYaml } from "./resolved-yaml.ts";
export { type Recipe, type RecipeKey, recipeJsonSchema, recipeKeys, recipeSchema, recipeSections } from "./schema.ts";
