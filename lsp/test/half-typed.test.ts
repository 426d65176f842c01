import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, it } from "vitest";
import type { TextEdit } from "vscode-languageserver";
import { completions } from "../src/service/completion.ts";
import { diagnostics } from "../src/service/diagnostics.ts";
import { quickFixes } from "../src/service/fixes.ts";
import { format } from "../src/service/format.ts";
import { codeLenses, inlayHints } from "../src/service/hints.ts";
import { hover } from "../src/service/hover.ts";
import { definition, references } from "../src/service/navigation.ts";
import { documentSymbols, foldingRanges } from "../src/service/outline.ts";
import { renameRange } from "../src/service/rename.ts";
import { contains } from "../src/service/tree.ts";
import { applied, documentAt, path, source, workspaceOf } from "./golden.ts";

const recipe = readFileSync(new URL("../../recipes/quickstart.yaml", import.meta.url), "utf8");
const workspace = workspaceOf({ "quickstart/prompts.jsonl": "" }, ["prompt"]);
const noise = fc.constantFrom(
  "",
  "{",
  "}",
  "[",
  "]",
  ":",
  ": ",
  "- ",
  "\n",
  "\n  ",
  "\t",
  "#",
  '"',
  "'",
  "&a",
  "*a",
  "|",
  "\r\n",
);

// The text up to a place, then what may be typed there, then perhaps the rest: each is a moment of somebody's typing.
it("every function answers in every state of a text, and a completion replaces what is around the cursor", async () => {
  const moment = fc.tuple(fc.nat(recipe.length), noise, fc.boolean());
  let offered = 0;
  await fc.assert(
    fc.asyncProperty(moment, async ([offset, typed, goesOn]) => {
      const document = documentAt(path, recipe.slice(0, offset) + typed + (goesOn ? recipe.slice(offset) : ""));
      const position = source(document).positionAt(offset + typed.length);
      for (const of of [hover, references]) of(document, position, workspace);
      for (const of of [definition, renameRange]) of(document, position);
      for (const of of [documentSymbols, foldingRanges, format]) of(document);
      const all = { start: { line: 0, character: 0 }, end: source(document).positionAt(document.text.length) };
      for (const of of [inlayHints, quickFixes]) of(document, all, workspace);
      for (const of of [codeLenses, diagnostics]) of(document, workspace);
      const [item] = await completions(document, position, workspace);
      if (!item) return;
      offered++;
      const { range, newText } = item.textEdit as TextEdit;
      expect(contains(range, position)).toBe(true);
      expect(range.start.line).toBe(range.end.line);
      const text = applied(document, [{ range, newText }]);
      expect(text.length).toBe(document.text.length - source(document).getText(range).length + newText.length);
    }),
    { numRuns: 200 },
  );
  expect(offered).toBeGreaterThan(20);
});
