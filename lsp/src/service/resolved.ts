import { type Range, resolvedYaml, type Verb } from "../../../runner/src/recipe/index.ts";
import { writtenRecipe } from "../../../runner/src/recipe/resolved-yaml.ts";
import { type Document, recipeOf, type Workspace } from "./workspace.ts";

export interface ResolvedRecipe {
  verb: Verb;
  /** Every value, by its sections; references to the environment are kept, since a secret may stand behind one. */
  recipe: unknown;
  /** The same as YAML, each value with where it comes from beside it. */
  yaml: string;
  /** Some value is wrong, and has its default in its place. */
  hasErrors: boolean;
  /** By dotted key: where this document itself gives a value. */
  places: Record<string, Range>;
}

/** A recipe over its parents and the defaults; undefined for a document that is none. */
export function resolved(document: Document, workspace: Pick<Workspace, "readFile">): ResolvedRecipe | undefined {
  const edited = recipeOf(document, workspace);
  if (!edited) return undefined;
  const { verb, recipe, provenance, diagnostics } = edited;
  const hasErrors = diagnostics.some(({ severity }) => severity === "error");
  const given = [...provenance].flatMap(([key, { place }]) =>
    place?.file === document.path ? [[key, place.range]] : [],
  );
  return {
    verb,
    recipe: writtenRecipe(recipe, provenance),
    yaml: resolvedYaml(recipe, provenance),
    hasErrors,
    places: Object.fromEntries(given),
  };
}
