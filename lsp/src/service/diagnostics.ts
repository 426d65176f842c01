import {
  type CodeAction,
  CodeActionKind,
  type Diagnostic,
  DiagnosticSeverity,
  type Range,
} from "vscode-languageserver";
import { diagnose, type Diagnostic as Finding } from "../../../runner/src/recipe/index.ts";
import { isRecipe } from "./documents.ts";

export interface Document {
  uri: string;
  /** As the operating system writes it. */
  path: string;
  text: string;
}

/** Reads a file that the recipe names: an open editor's text before the disk's. Undefined when there is none. */
export type ReadFile = (path: string) => string | undefined;

/** What is wrong with the recipe, or nothing for a document that is none. */
export function diagnostics(document: Document, readFile: ReadFile): Diagnostic[] {
  return findings(document, readFile).map(toDiagnostic);
}

/** One edit for each finding within `range` that knows its repair; made from the text of now, so never stale. */
export function quickFixes(document: Document, range: Range, readFile: ReadFile): CodeAction[] {
  return findings(document, readFile)
    .filter((finding) => finding.fix && overlaps(finding.range, range))
    .map((finding) => ({
      title: finding.fix!.title,
      kind: CodeActionKind.QuickFix,
      isPreferred: true,
      diagnostics: [toDiagnostic(finding)],
      edit: { changes: { [document.uri]: [{ range: finding.fix!.range, newText: finding.fix!.newText }] } },
    }));
}

function findings({ path, text }: Document, readFile: ReadFile): Finding[] {
  return isRecipe(path, text) ? diagnose(text, path, { readFile }) : [];
}

const severities = {
  error: DiagnosticSeverity.Error,
  warning: DiagnosticSeverity.Warning,
  info: DiagnosticSeverity.Information,
};

function toDiagnostic({ range, severity, message, code }: Finding): Diagnostic {
  return { range, severity: severities[severity], message, code, source: "molt-runner" };
}

function overlaps(a: Range, b: Range): boolean {
  return !isBefore(a.end, b.start) && !isBefore(b.end, a.start);
}

function isBefore(a: Range["start"], b: Range["start"]): boolean {
  return a.line < b.line || (a.line === b.line && a.character < b.character);
}
