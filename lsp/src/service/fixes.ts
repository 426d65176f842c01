import { type CodeAction, CodeActionKind, type TextEdit } from "vscode-languageserver";
import { type Diagnostic as Finding, type Range, recipeKeys } from "../../../runner/src/recipe/index.ts";
import { findings, toDiagnostic } from "./diagnostics.ts";
import { contains, flatten, overlaps, type TreeNode, treeOf } from "./tree.ts";
import type { Document, RecipeFiles } from "./workspace.ts";

/** One repair for each finding within `range` that knows its own; made from the text of now, so never stale. */
export function quickFixes(document: Document, range: Range, workspace: RecipeFiles): CodeAction[] {
  return findings(document, workspace)
    .filter((finding) => overlaps(finding.range, range))
    .flatMap((finding) => {
      const repair = repairOf(document, finding);
      if (!repair) return [];
      return {
        title: repair.title,
        kind: CodeActionKind.QuickFix,
        isPreferred: true,
        diagnostics: [toDiagnostic(finding)],
        edit: { changes: { [document.uri]: repair.edits } },
      };
    });
}

function repairOf(document: Document, { fix, meant, code, range }: Finding) {
  if (fix) return { title: fix.title, edits: [{ range: fix.range, newText: fix.newText }] };
  if (meant === undefined || !recipeKeys.has(meant)) return undefined;
  const nodes = flatten(treeOf(document));
  const misplaced = code === "unknown-key" ? nodes.find(({ keyRange }) => contains(keyRange, range.start)) : undefined;
  if (nodes.some((node) => node.key === meant && node !== misplaced)) return undefined;
  const value = code === "unknown-key" ? movableValue(document, misplaced) : "";
  const added = value === undefined ? undefined : insertion(document, meant, value);
  if (!added) return undefined;
  if (!misplaced) return { title: `Add '${meant}'`, edits: [added] };
  return { title: `Move to '${meant}'`, edits: [removal(document, misplaced), added] };
}

/** On the last line, without an end, the two edits would meet. */
function movableValue(document: Document, node: TreeNode | undefined): string | undefined {
  const lines = linesOf(document);
  if (!node || node.children.length > 0) return undefined;
  const { start, end } = node.valueRange;
  if (start.line !== end.line || end.line === lines.length - 1) return undefined;
  return node.valueRange === node.keyRange ? "" : lines[start.line]!.slice(start.character, end.character);
}

/** A key below its section: in its braces, on a line after its last, or with the sections that it lacks. */
function insertion(document: Document, key: string, value: string): TextEdit | undefined {
  const lines = linesOf(document);
  const names = key.split(".");
  const section = flatten(treeOf(document)).findLast((node) => key.startsWith(`${node.key}.`));
  const missing = names.slice(section?.key.split(".").length ?? 0);
  if (!section) return at(lines.length - 1, lines.at(-1)!.length, block(missing, 0, value, lines.at(-1) !== ""));
  const { start, end } = section.valueRange;
  const last = flatten(section.children).at(-1);
  const opening = lines[start.line]![start.character];
  if (opening === "{") {
    const text = `${missing.join(": { ")}: ${value}${" }".repeat(missing.length - 1)}`;
    const place = section.children.at(-1)?.valueRange.end ?? { ...start, character: start.character + 1 };
    return at(place.line, place.character, `${last ? ", " : " "}${text}`);
  }
  // An alias, or a value where a section should be.
  if (!last && (start.line !== end.line || start.character !== end.character)) return undefined;
  const indent = section.children[0]?.keyRange.start.character ?? section.keyRange.start.character + 2;
  const row = (last?.valueRange ?? section.keyRange).end.line;
  return at(row, lines[row]!.length, block(missing, indent, value, true));
}

/** Lines of nested sections that end in the key. */
function block(names: string[], indent: number, value: string, newLine: boolean): string {
  const lines = names.map((name, depth) => `${" ".repeat(indent + 2 * depth)}${name}:`);
  return `${newLine ? "\n" : ""}${lines.join("\n")} ${value}${newLine ? "" : "\n"}`;
}

function at(line: number, character: number, newText: string): TextEdit {
  const place = { line, character };
  return { range: { start: place, end: place }, newText };
}

/** With its line, or between braces with a comma. */
function removal(document: Document, { keyRange: { start }, valueRange: { end } }: TreeNode): TextEdit {
  const line = linesOf(document)[start.line]!;
  const before = line.slice(0, start.character);
  if (before.trim() === "") {
    return { range: { start: { ...start, character: 0 }, end: { line: end.line + 1, character: 0 } }, newText: "" };
  }
  const after = /^\s*,\s*/.exec(line.slice(end.character))?.[0].length ?? 0;
  const comma = after > 0 ? 0 : (/,\s*$/.exec(before)?.[0].length ?? 0);
  const range = {
    start: { ...start, character: start.character - comma },
    end: { ...end, character: end.character + after },
  };
  return { range, newText: "" };
}

function linesOf({ text }: Document): string[] {
  return text.split(/\r?\n/);
}
