import { type Location, type Position, SymbolKind, type WorkspaceSymbol } from "vscode-languageserver";
import type { CodeKind } from "../../../../runner/src/code/index.ts";
import * as recipes from "../navigation.ts";
import { matches, workspaceSymbols as recipeSymbols } from "../outline.ts";
import type { Document } from "../workspace.ts";
import { type CodeWorkspace, codeNameAt, recipesUsing, toLocation } from "./workspace.ts";

/** From recipes and from code: a key leads to the schema, a name to its function, a metric to where it is made. */
export function definition(document: Document, position: Position, workspace: CodeWorkspace): Location[] {
  const name = codeNameAt(document, position, workspace);
  if (name) return workspace.code.definitionsOf(name).map(toLocation);
  return [recipes.definition(document, position)].filter((location) => location !== undefined);
}

/** Every place in code, the definition first, and in recipes. */
export function references(document: Document, position: Position, workspace: CodeWorkspace): Location[] {
  const name = codeNameAt(document, position, workspace);
  if (!name) return recipes.references(document, position, workspace);
  const places = [...workspace.code.definitionsOf(name), ...workspace.code.placesOf(name)].map(toLocation);
  const inCode = new Map(places.map((place) => [JSON.stringify(place), place]));
  return [...inCode.values(), ...recipesUsing(name, workspace)];
}

const symbolKinds: Record<CodeKind, SymbolKind> = {
  key: SymbolKind.Property,
  estimator: SymbolKind.Function,
  loss: SymbolKind.Function,
  filter: SymbolKind.Function,
  agent: SymbolKind.Class,
  metric: SymbolKind.Variable,
  event: SymbolKind.Event,
};

/** Recipes with their keys, and all that code makes and recipes or runs name. */
export function workspaceSymbols(query: string, workspace: CodeWorkspace): WorkspaceSymbol[] {
  const inCode = (Object.entries(symbolKinds) as [CodeKind, SymbolKind][]).flatMap(([of, kind]) => {
    const names = workspace.code.namesOf(of).filter((name) => matches(name, query));
    return names.map((name) => {
      const location = toLocation(workspace.code.definitionsOf({ kind: of, name })[0]!);
      return { name, kind, containerName: of, location };
    });
  });
  return [...recipeSymbols(query, workspace), ...inCode];
}
