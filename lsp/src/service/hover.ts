import { type Hover, MarkupKind, type Position } from "vscode-languageserver";
import { recipeKeys, recipeSections } from "../../../runner/src/recipe/index.ts";
import { explain, explanationText, link } from "./explain.ts";
import { symbolAt } from "./navigation.ts";
import { contains, nodeAt, treeOf } from "./tree.ts";
import { type Document, recipeOf, type Workspace } from "./workspace.ts";

/** A key with its value and where that comes from; a section with its keys; a name with the function it stands for. */
export function hover(document: Document, position: Position, workspace: Workspace): Hover | undefined {
  const node = recipeOf(document, workspace) && nodeAt(treeOf(document), position);
  const text = node && textOf(document, node.key, workspace);
  if (!text) return undefined;
  const symbol = symbolAt(document, position);
  const place =
    symbol && symbol.kind !== "key" && symbol.kind !== "file"
      ? workspace.code.definitionOf(symbol.kind, symbol.name)
      : undefined;
  const value = place ? `${text}\n\nDefined in ${link(place)}` : text;
  const range = contains(node.keyRange, position) ? node.keyRange : node.valueRange;
  return { contents: { kind: MarkupKind.Markdown, value }, range };
}

function textOf(document: Document, key: string, workspace: Workspace): string | undefined {
  const section = recipeSections.get(key);
  const explanation = explain(document, key, workspace);
  if (!section) return explanation && explanationText(explanation);
  const below = [...recipeKeys.keys()].filter((name) => name.startsWith(`${key}.`));
  return `**${key}**: a section\n\n${section.description}\n\n${below.map((name) => `\`${name}\``).join(", ")}`;
}
