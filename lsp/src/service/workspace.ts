import type { CodeIndex } from "../../../runner/src/code/index.ts";
import {
  type EditedRecipe,
  type ParsedYaml,
  parseYaml,
  type Recipe,
  readEdited,
} from "../../../runner/src/recipe/index.ts";
import type { ModelShape } from "../../../runner/src/recipe/planner/index.ts";
import { isRecipe } from "./documents.ts";

/** One version of a text: what is read from it once is kept with it. */
export interface Document {
  uri: string;
  /** As the operating system writes it. */
  path: string;
  text: string;
}

/** What the functions of this room may ask beside the document at hand. */
export interface Workspace {
  /** An open editor's text before the disk's. Undefined where there is no file. */
  readFile(path: string): string | undefined;
  /** Names in a folder, those of folders with "/" at the end; none where it cannot be read. */
  listFolder(path: string): string[];
  /** The columns of the first rows of dataset files. */
  columns(paths: string[]): Promise<string[]>;
  /** Every recipe of the workspace, open or not. */
  recipes(): Document[];
  /** The policy of the recipe in a file, as planning needs it; throws a usage error where that cannot be read. */
  policyShape(recipe: Recipe, file: string): ModelShape;
  /** The runner's own code: this repository's, or the installed package's. */
  code: Pick<CodeIndex, "readersOf" | "definitionOf">;
}

/** What reading a recipe and planning it asks. */
export type RecipeFiles = Pick<Workspace, "readFile" | "policyShape">;

const parsed = new WeakMap<Document, ParsedYaml | undefined>();
const read = new WeakMap<Document, EditedRecipe>();

/** Undefined where the text is too long to be a recipe. */
export function yamlOf(document: Document): ParsedYaml | undefined {
  if (!parsed.has(document)) parsed.set(document, parseYaml(document.text));
  return parsed.get(document);
}

/** The recipe with its parents, as far as it can be read; undefined for a document that is none. */
export function recipeOf(document: Document, { readFile }: Pick<Workspace, "readFile">): EditedRecipe | undefined {
  const { path, text } = document;
  if (!read.has(document) && isRecipe(path, text)) {
    read.set(document, readEdited(text, path, { readFile }, yamlOf(document)));
  }
  return read.get(document);
}
