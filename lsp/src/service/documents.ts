import { recipeSections } from "../../../runner/src/recipe/index.ts";

const marker = /^#\s*molt-runner\b/;
/** `data`, `train` or `eval` at the top are common in other tools' files; these are not. */
const tellingSections = ["actor", "rollout"];

/**
 * Whether a YAML document is a recipe, so that other YAML is never flagged: its first line says so (`# molt-runner`),
 * or it has two of the schema's sections and one of them is telling, or it lies below a `recipes` folder and has one.
 */
export function isRecipe(path: string, text: string): boolean {
  if (!/\.ya?ml$/i.test(path)) return false;
  if (marker.test(text)) return true;
  const sections = topLevelKeys(text).filter((key) => recipeSections.has(key));
  if (/[\\/]recipes[\\/]/.test(path)) return sections.length > 0;
  return sections.length > 1 && tellingSections.some((name) => sections.includes(name));
}

/** Keys that start a line. Lexical, so that it holds while the text is half typed and does not parse. */
function topLevelKeys(text: string): string[] {
  return [...text.matchAll(/^(\w+)\s*:(?=\s|$)/gm)].map((match) => match[1]!);
}
