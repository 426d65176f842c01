import { dirname, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Location, Position, Range } from "vscode-languageserver";
import { type CodeKind, registryKinds } from "../../../runner/src/code/index.ts";
import { fileStart, recipeKeys } from "../../../runner/src/recipe/index.ts";
import { isRecipe } from "./documents.ts";
import { contains, flatten, treeOf } from "./tree.ts";
import type { Document, Workspace } from "./workspace.ts";

/** What words of recipes stand for: what code names too, or a file by its absolute path. */
export interface RecipeName {
  kind: CodeKind | "file";
  name: string;
}

export interface RecipeSymbol extends RecipeName {
  range: Range;
}

export function symbolAt(document: Document, position: Position): RecipeSymbol | undefined {
  if (!isRecipe(document.path, document.text)) return undefined;
  return symbolsOf(document).find(({ range }) => contains(range, position));
}

function symbolsOf(document: Document): RecipeSymbol[] {
  return flatten(treeOf(document)).flatMap(({ key, keyRange, texts }) => {
    const values = texts.flatMap(({ text, range }) => {
      const found = valueName(document.path, key, text);
      return found ? { ...found, range } : [];
    });
    return [{ kind: "key", name: key, range: keyRange }, ...values];
  });
}

function valueName(file: string, key: string, text: string): RecipeName | undefined {
  const kind = registryKinds[key];
  const isFile = recipeKeys.get(key)?.file && /[/\\]/.test(text);
  if (kind && !isFile) return { kind, name: text };
  const relativeTo = key === "extends" || isFile ? "recipe" : recipeKeys.get(key)?.path;
  if (relativeTo === undefined) return undefined;
  return { kind: "file", name: resolve(relativeTo === "recipe" ? dirname(file) : process.cwd(), text) };
}

/** The file that a path names. Where keys and names lead, code knows. */
export function definition(document: Document, position: Position): Location | undefined {
  const symbol = symbolAt(document, position);
  if (symbol?.kind !== "file") return undefined;
  return { uri: pathToFileURL(symbol.name).href, range: fileStart };
}

/** Every recipe's place that stands for the same. */
export function references(document: Document, position: Position, workspace: Workspace): Location[] {
  const symbol = symbolAt(document, position);
  return symbol ? occurrences(symbol, workspace) : [];
}

export function occurrences({ kind, name }: RecipeName, workspace: Workspace): Location[] {
  return workspace.recipes().flatMap((recipe) =>
    symbolsOf(recipe)
      .filter((symbol) => symbol.kind === kind && symbol.name === name)
      .map(({ range }) => ({ uri: recipe.uri, range })),
  );
}
