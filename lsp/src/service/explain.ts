import { pathToFileURL } from "node:url";
import type { CodeLocation } from "../../../runner/src/code/index.ts";
import { type Explanation as Explained, explainKey } from "../../../runner/src/recipe/explain.ts";
import { inlineYaml, type RecipeKey, recipeKeys } from "../../../runner/src/recipe/index.ts";
import { planFacts, planOf } from "./plan.ts";
import { type Document, recipeOf, type Workspace } from "./workspace.ts";

/** All that is known of a key of a recipe. */
export interface Explanation extends Explained {
  /** Its flag on the command line. */
  flag: string;
  /** Where code reads it. */
  readers: CodeLocation[];
  /** Numbers of the plan that the value has a part in. */
  plan: string[];
}

/** Undefined for a key that the schema does not have, and in a document that is no recipe. */
export function explain(document: Document, name: string, workspace: Workspace): Explanation | undefined {
  const edited = recipeOf(document, workspace);
  if (!recipeKeys.has(name) || !edited) return undefined;
  const made = planOf(document, workspace);
  return {
    ...explainKey(name, edited.recipe, edited.provenance),
    flag: `--${name}`,
    readers: workspace.code.readersOf(name),
    plan: made ? planFacts(made).flatMap(({ keys, text }) => (keys.test(name) ? [text] : [])) : [],
  };
}

/** What the schema says of a key, in Markdown. */
export function describeKey({ key, type, unit, description, planned }: RecipeKey): string {
  const note = planned ? "\n\nOnly `plan` reads it so far." : "";
  return `**${key}**: ${type}${unit ? `, in ${unit}` : ""}\n\n${description}${note}`;
}

/** An explanation in Markdown; files are links. */
export function explanationText(explanation: Explanation): string {
  const { key, value, provenance, derived, flag, guardrails, plan, metrics = [], readers } = explanation;
  const code = (it: unknown) => `\`${inlineYaml(it)}\``;
  const usual = derived ?? (explanation.default === undefined ? "no default" : `default ${code(explanation.default)}`);
  const given = provenance === "default" ? "the default" : `${provenance}; ${usual}`;
  const notes = [...Object.values(guardrails), ...plan.map((numbers) => `Plan: ${numbers}`)];
  const list = (what: string, names: string[]) => (names.length > 0 ? `${what} ${names.join(", ")}` : "");
  return [
    describeKey(recipeKeys.get(key)!),
    `${code(value)} (${given}), flag \`${flag}\``,
    notes.map((note) => `- ${note}`).join("\n"),
    list("Moves the metrics", metrics.map(code)),
    list("Read in", readers.slice(0, mostReaders).map(link)),
  ]
    .filter((part) => part !== "")
    .join("\n\n");
}

/** More would hide the rest. */
const mostReaders = 8;

export function link({ file, line }: CodeLocation): string {
  return `[${file.split(/[\\/]/).at(-1)}:${line + 1}](${pathToFileURL(file).href}#L${line + 1})`;
}
