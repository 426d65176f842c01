import { type DocumentSymbol, type FoldingRange, SymbolKind, type WorkspaceSymbol } from "vscode-languageserver";
import { fileStart } from "../../../runner/src/recipe/index.ts";
import { isRecipe } from "./documents.ts";
import { flatten, type TreeNode, treeOf } from "./tree.ts";
import { type Document, recipeOf, type Workspace } from "./workspace.ts";

/** Sections with the keys that the file sets. */
export function documentSymbols(document: Document): DocumentSymbol[] {
  return isRecipe(document.path, document.text) ? treeOf(document).map(toSymbol) : [];
}

function toSymbol({ name, keyRange, valueRange, texts, children }: TreeNode): DocumentSymbol {
  return {
    name,
    kind: children.length > 0 ? SymbolKind.Module : SymbolKind.Property,
    detail: texts.map(({ text }) => text).join(", "),
    range: { start: keyRange.start, end: valueRange.end },
    selectionRange: keyRange,
    children: children.map(toSymbol),
  };
}

/** Keys over several lines. */
export function foldingRanges(document: Document): FoldingRange[] {
  if (!isRecipe(document.path, document.text)) return [];
  return flatten(treeOf(document))
    .map(({ keyRange, valueRange }) => ({ startLine: keyRange.start.line, endLine: valueRange.end.line }))
    .filter(({ startLine, endLine }) => endLine > startLine);
}

/** The recipes of the workspace by name, and their keys, that match the query. */
export function workspaceSymbols(query: string, workspace: Workspace): WorkspaceSymbol[] {
  return workspace.recipes().flatMap((recipe) => {
    const file = recipe.path.split(/[\\/]/).at(-1)!;
    const verb = recipeOf(recipe, workspace)?.verb;
    const itself = { name: file, kind: SymbolKind.File, containerName: `${verb} recipe`, range: fileStart };
    const keys = flatten(treeOf(recipe))
      .filter(({ children }) => children.length === 0)
      .map(({ key, keyRange }) => ({ name: key, kind: SymbolKind.Property, containerName: file, range: keyRange }));
    return [itself, ...keys]
      .filter(({ name }) => matches(name, query))
      .map(({ range, ...symbol }) => ({ ...symbol, location: { uri: recipe.uri, range } }));
  });
}

/** Whether a name holds the letters of a query in order. */
export function matches(name: string, query: string): boolean {
  let at = 0;
  for (const letter of name.toLowerCase()) if (letter === query.toLowerCase()[at]) at++;
  return at === query.length;
}
