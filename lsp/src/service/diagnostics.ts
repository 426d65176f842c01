import { type Diagnostic, DiagnosticSeverity } from "vscode-languageserver";
import type { Diagnostic as Finding } from "../../../runner/src/recipe/index.ts";
import { planOf } from "./plan.ts";
import { type Document, type RecipeFiles, recipeOf } from "./workspace.ts";

/** What is wrong with the recipe and, if nothing is, with its plan; nothing for a document that is no recipe. */
export function diagnostics(document: Document, workspace: RecipeFiles): Diagnostic[] {
  return findings(document, workspace).map(toDiagnostic);
}

export function findings(document: Document, workspace: RecipeFiles): Finding[] {
  const edited = recipeOf(document, workspace);
  if (!edited) return [];
  const plan = planOf(document, workspace);
  return [...edited.diagnostics, ...(plan?.findings.map(edited.place) ?? [])];
}

const severities = {
  error: DiagnosticSeverity.Error,
  warning: DiagnosticSeverity.Warning,
  info: DiagnosticSeverity.Information,
};

export function toDiagnostic({ range, severity, message, code, rule }: Finding): Diagnostic {
  return { range, severity: severities[severity], message, code: rule ?? code, source: "molt-runner" };
}
