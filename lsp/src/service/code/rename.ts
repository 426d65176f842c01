import { relative } from "node:path";
import type { Location, Position, WorkspaceEdit } from "vscode-languageserver";
import type { CodeName, CodePlace } from "../../../../runner/src/code/index.ts";
import { occurrences, symbolAt } from "../navigation.ts";
import * as recipes from "../rename.ts";
import { contains } from "../tree.ts";
import type { Document } from "../workspace.ts";
import { type CodeWorkspace, codeNameAt, toLocation } from "./workspace.ts";

/** What a rename at the position would change, in a recipe or in code. */
export function renameRange(document: Document, position: Position, workspace: CodeWorkspace) {
  const name = renamedHere(document, position, workspace);
  if (!name) return recipes.renameRange(document, position);
  const here = places(name, workspace).find(({ uri, range }) => uri === document.uri && contains(range, position));
  return here && { range: here.range, placeholder: leafOf(name) };
}

/** In code and in recipes at once. */
export function rename(document: Document, position: Position, to: string, workspace: CodeWorkspace): WorkspaceEdit {
  const name = renamedHere(document, position, workspace);
  if (!name) return recipes.rename(document, position, to, workspace);
  refuse(name, to, workspace);
  const edited = places(name, workspace).map(({ form, ...place }) => {
    return { ...place, newText: { word: to, quoted: JSON.stringify(to), shorthand: `${to}: ${leafOf(name)}` }[form] };
  });
  return recipes.edits(edited);
}

/** Not a recipe's own keys and paths, which are the recipes' affair; a class is TypeScript's, a section its file's. */
function renamedHere(document: Document, position: Position, workspace: CodeWorkspace): CodeName | undefined {
  const name = codeNameAt(document, position, workspace);
  const isSection = name?.kind === "key" && !name.name.includes(".");
  const isKeyOfRecipe = symbolAt(document, position)?.kind === "key";
  return name?.kind === "agent" || isSection || isKeyOfRecipe ? undefined : name;
}

interface Written extends Location {
  form: CodePlace["form"];
}

function places(name: CodeName, workspace: CodeWorkspace): Written[] {
  const inCode = workspace.code.placesOf(name).map((place) => ({ ...toLocation(place), form: place.form }));
  return [...inCode, ...occurrences(name, workspace).map((place) => ({ ...place, form: "word" as const }))];
}

function refuse(name: CodeName, to: string, { code, roots }: CodeWorkspace): void {
  if (!/^[a-z_]\w*$/i.test(to)) throw recipes.refusal(`'${to}' is no name: letters, digits and _ make one`);
  const renamed = [...name.name.split(".").slice(0, -1), to].join(".");
  if (code.namesOf(name.kind).includes(renamed))
    throw recipes.refusal(`there is the ${name.kind} '${renamed}' already`);
  const isOpen = ({ file }: CodePlace) =>
    !/[\\/]node_modules[\\/]/.test(file) && roots.some((root) => !relative(root, file).startsWith(".."));
  const elsewhere = code.placesOf(name).find((place) => !isOpen(place));
  if (elsewhere) throw recipes.refusal(`the ${name.kind} '${name.name}' is the runner's own: ${elsewhere.file} has it`);
}

function leafOf({ kind, name }: CodeName): string {
  return kind === "key" ? name.split(".").at(-1)! : name;
}
