import { recipeSections } from "../../../runner/src/recipe/schema.ts";

const marker = /^\ufeff?#\s*molt-runner\b/;
/** `data`, `train` or `eval` at the top are common in other tools' files; these are not. */
const tellingKeys = ["actor", "rollout", "extends"];

/**
 * Whether a YAML document is a recipe, so that other YAML is never flagged: its first line says so (`# molt-runner`),
 * or it has two of the keys that stand at a recipe's top and one is telling, or it lies below `recipes` and has one.
 */
export function isRecipe(path: string, text: string): boolean {
  if (!isYaml(path)) return false;
  if (marker.test(text)) return true;
  const known = topLevelKeys(text).filter((key) => key === "extends" || recipeSections.has(key));
  if (isBelowRecipes(path)) return known.length > 0;
  return known.length > 1 && tellingKeys.some((name) => known.includes(name));
}

/** A recipe, or a file below a `recipes` folder that has no key yet. */
export function mayBecomeRecipe(path: string, text: string): boolean {
  return isRecipe(path, text) || (isYaml(path) && isBelowRecipes(path) && topLevelKeys(text).length === 0);
}

export function isYaml(path: string): boolean {
  return /\.ya?ml$/i.test(path);
}

function isBelowRecipes(path: string): boolean {
  return /[\\/]recipes[\\/]/.test(path);
}

/** Keys that start a line. Lexical, so that it holds while the text is half typed and does not parse. */
function topLevelKeys(text: string): string[] {
  return [...text.matchAll(/^\ufeff?(\w+)\s*:(?=\s|$)/gm)].map((match) => match[1]!);
}
