import { basename, dirname, join, relative, sep } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import {
  LSPErrorCodes,
  type Position,
  type Range,
  ResponseError,
  type TextDocumentEdit,
  type WorkspaceEdit,
} from "vscode-languageserver";
import { inlineYaml, recipeKeys, recipeSections } from "../../../runner/src/recipe/index.ts";
import { occurrences, symbolAt } from "./navigation.ts";
import type { Document, Workspace } from "./workspace.ts";

/** What a rename at the position would change: a key, or the name of the file that a value is the path of. */
export function renameRange(document: Document, position: Position): { range: Range; placeholder: string } | undefined {
  const symbol = symbolAt(document, position);
  if (symbol?.kind === "key") return { range: symbol.range, placeholder: symbol.name.split(".").at(-1)! };
  return symbol?.kind === "file" ? { range: symbol.range, placeholder: basename(symbol.name) } : undefined;
}

/** In every recipe of the workspace at once. A key becomes another of its section; a file is renamed on disk too. */
export function rename(document: Document, position: Position, name: string, workspace: Workspace): WorkspaceEdit {
  const symbol = symbolAt(document, position);
  if (symbol?.kind === "key") return renameKey(symbol.name, name, workspace);
  if (symbol?.kind === "file") return renameFile(symbol.name, name, workspace);
  throw refusal("only keys and paths of a recipe can be renamed here");
}

function renameKey(key: string, name: string, workspace: Workspace): WorkspaceEdit {
  const renamed = [...key.split(".").slice(0, -1), name].join(".");
  if (!recipeKeys.has(renamed) && !recipeSections.has(renamed)) {
    throw refusal(`a recipe's keys are the schema's, and '${renamed}' is not among them`);
  }
  const places = occurrences({ kind: "key", name: key }, workspace);
  const taken = occurrences({ kind: "key", name: renamed }, workspace);
  const both = taken.find(({ uri }) => places.some((place) => place.uri === uri));
  if (both) throw refusal(`${fileURLToPath(both.uri)} has '${renamed}' already`);
  return edits(places.map((place) => ({ ...place, newText: name })));
}

function renameFile(path: string, name: string, workspace: Workspace): WorkspaceEdit {
  const folder = dirname(path);
  const target = join(folder, name);
  // Their names alone: a dataset may be large.
  const files = workspace.listFolder(folder);
  if (/[\\/]/.test(name)) throw refusal("the file stays in its folder: give a name without '/'");
  if (!files.includes(basename(path))) throw refusal(`there is no file ${path}`);
  if (files.includes(name)) throw refusal(`there is a file ${target} already`);
  const places = occurrences({ kind: "file", name: path }, workspace).map((place) => {
    const from = relative(dirname(fileURLToPath(place.uri)), target);
    return { ...place, newText: inlineYaml(from.replaceAll(sep, "/")) };
  });
  const [oldUri, newUri] = [path, target].map((file) => pathToFileURL(file).href) as [string, string];
  // Last, since the file may be a recipe that is edited itself.
  return { documentChanges: [...edits(places).documentChanges!, { kind: "rename", oldUri, newUri }] };
}

export function edits(places: { uri: string; range: Range; newText: string }[]): WorkspaceEdit {
  const documentChanges = [...new Set(places.map(({ uri }) => uri))].map(
    (uri): TextDocumentEdit => ({
      textDocument: { uri, version: null },
      edits: places.filter((place) => place.uri === uri).map(({ range, newText }) => ({ range, newText })),
    }),
  );
  return { documentChanges };
}

export function refusal(message: string): ResponseError {
  return new ResponseError(LSPErrorCodes.RequestFailed, message);
}
