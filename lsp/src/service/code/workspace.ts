import { pathToFileURL } from "node:url";
import type { Location, Position } from "vscode-languageserver";
import { type CodeIndex, type CodeName, type CodePlace, registryKinds } from "../../../../runner/src/code/index.ts";
import { fileStart, valueAt } from "../../../../runner/src/recipe/index.ts";
import { occurrences, symbolAt } from "../navigation.ts";
import { type Document, recipeOf, type Workspace } from "../workspace.ts";

/** What navigation over code asks beside recipes. */
export interface CodeWorkspace extends Workspace {
  /** Of the workspace's own code and of the runner's. */
  code: CodeIndex;
  /** The folders that are open. */
  roots: string[];
}

/** What stands at a position of a recipe or of code. */
export function codeNameAt(document: Document, position: Position, { code }: CodeWorkspace): CodeName | undefined {
  const symbol = symbolAt(document, position);
  if (!symbol) return code.nameAt({ file: document.path, ...position });
  return symbol.kind === "file" ? undefined : { kind: symbol.kind, name: symbol.name };
}

/**
 * Where recipes use a name, one place each: a key where it is set, a function or an agent where it is chosen. `agents`
 * are the files that an agent's name may mean.
 */
export function recipesUsing(
  { kind, name }: CodeName,
  workspace: CodeWorkspace,
  agents = workspace.code.definitionsOf({ kind, name }).map(({ file }) => file),
): Location[] {
  if (kind === "key") return occurrences({ kind, name }, workspace);
  const key = kind === "agent" ? "train.agent_path" : registryKeys.get(kind);
  if (key === undefined) return [];
  return workspace.recipes().flatMap((recipe) => {
    const edited = recipeOf(recipe, workspace);
    if (!edited) return [];
    // Supervised training has one loss, whatever the recipe's keys say, and neither advantages nor an agent.
    const isSupervised = edited.verb === "sft";
    const value = isSupervised ? (kind === "loss" ? "sft" : undefined) : valueAt(edited.recipe, key);
    if (kind === "agent" ? !agents.includes(String(value)) : value !== name) return [];
    const place = isSupervised ? undefined : edited.provenance.get(key)?.place;
    // A parent may give the value, or it is the default.
    return [{ uri: recipe.uri, range: place?.file === recipe.path ? place.range : fileStart }];
  });
}

const registryKeys = new Map(Object.entries(registryKinds).map(([key, kind]) => [kind, key]));

export function toLocation({ file, line, character, length }: CodePlace): Location {
  const range = { start: { line, character }, end: { line, character: character + length } };
  return { uri: pathToFileURL(file).href, range };
}
