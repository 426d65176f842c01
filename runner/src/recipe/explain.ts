import { usageError } from "../errors.ts";
import { nearestKey } from "./flags.ts";
import { guardrailRules, guardrailsOf } from "./guardrails/index.ts";
import type { Provenance } from "./resolve.ts";
import { formatProvenance, inlineYaml, writtenValue } from "./resolved-yaml.ts";
import { type Recipe, type RecipeKey, recipeKeys } from "./schema.ts";

/** All that is known of one key in one recipe. */
export interface Explanation extends Omit<RecipeKey, "schema" | "required" | "values"> {
  /** As the recipe writes it: references to the environment are kept. */
  value: unknown;
  /** `default`, `file:line:column`, or the flag. */
  provenance: string;
  /** What each guardrail that reads the key asks. */
  guardrails: Record<string, string>;
}

export function explainKey(name: string, recipe: Recipe, provenance: Map<string, Provenance>): Explanation {
  const known = recipeKeys.get(name);
  if (known === undefined) {
    const meant = nearestKey(name);
    const fix = meant === undefined ? "name a key with its sections, such as actor.adam.lr" : undefined;
    throw usageError(`unknown key '${name}'${meant === undefined ? "" : `: did you mean '${meant}'?`}`, { fix });
  }
  const { schema: _, required: __, values: ___, ...said } = known;
  const rules = guardrailsOf(name).map((rule) => [rule, guardrailRules.get(rule)!.holds]);
  const source = formatProvenance(provenance.get(name)!);
  const value = writtenValue(name, recipe, provenance);
  return { ...said, value, provenance: source, guardrails: Object.fromEntries(rules) };
}

export function formatExplanation(explained: Explanation): string {
  const { key, value, provenance, description, type, unit, derived, planned, guardrails, metrics = [] } = explained;
  const usual = derived ?? (explained.default === undefined ? "none: it must be given" : inlineYaml(explained.default));
  const lines = [
    ["type", `${type}${unit ? `, in ${unit}` : ""}`],
    ["default", usual],
    ["flag", `--${key}`],
    ...Object.entries(guardrails).map(([name, holds]) => ["guardrail", `${name}: ${holds}`]),
    ...(metrics.length > 0 ? [["metrics", metrics.join(", ")]] : []),
    ...(planned ? [["planned", "only plan reads it so far"]] : []),
  ];
  const table = lines.map(([name, text]) => `  ${name!.padEnd(10)}${text}`);
  return [`${key}: ${inlineYaml(value)}  # ${provenance}`, `  ${description}`, ...table].join("\n");
}
