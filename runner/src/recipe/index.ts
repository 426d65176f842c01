/** The recipe service: commands, the language server and tools read a recipe through this. */
export * from "./arithmetic.ts";
export * from "./diagnostic.ts";
export { type ParsedYaml, parseYaml, positionAt } from "./document.ts";
export * from "./guardrails/index.ts";
export * from "./load.ts";
export { type ModelShape, type Plan, planRecipe, planTable, readModelShape } from "./planner/index.ts";
export type { Provenance, Sources } from "./resolve.ts";
export { inlineYaml, resolvedYaml, writtenRecipe } from "./resolved-yaml.ts";
export * from "./schema.ts";
