import type { CodeLens } from "vscode-languageserver";
import { codeLenses as recipeLenses } from "../hints.ts";
import type { Document } from "../workspace.ts";
import { type CodeWorkspace, recipesUsing, toLocation } from "./workspace.ts";

const kinds = ["estimator", "loss", "filter", "agent"];

/** Above a recipe, what can be done with it; above what recipes choose, those that do. */
export function codeLenses(document: Document, workspace: CodeWorkspace): CodeLens[] {
  if (!/\.[cm]?[jt]s$/.test(document.path)) return recipeLenses(document, workspace);
  const chosen = workspace.code.definedIn(document.path).filter(({ name }) => kinds.includes(name.kind));
  return chosen.map(({ name, place }) => {
    const users = recipesUsing(name, workspace, [document.path]);
    const { range } = toLocation(place);
    const title = `used by ${users.length} ${users.length === 1 ? "recipe" : "recipes"}`;
    const command = users.length === 0 ? "" : "molt.showReferences";
    return { range, command: { title, command, arguments: [document.uri, range.start, users] } };
  });
}
