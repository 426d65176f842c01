import type { CodeLens, InlayHint, Range } from "vscode-languageserver";
import { arithmetic, fileStart } from "../../../runner/src/recipe/index.ts";
import { planFacts, planOf } from "./plan.ts";
import { contains, flatten, treeOf } from "./tree.ts";
import { type Document, recipeOf, type Workspace } from "./workspace.ts";

/** Commands of the lenses, which the editor has: each takes the recipe's URI. */
const lenses = [
  ["run", "molt.run"],
  ["plan", "molt.plan"],
  ["check", "molt.check"],
] as const;

/** Above a recipe's first key: what can be done with it. The first is the verb that the recipe is made for. */
export function codeLenses(document: Document, workspace: Workspace): CodeLens[] {
  const edited = recipeOf(document, workspace);
  if (!edited) return [];
  const start = treeOf(document)[0]?.keyRange.start ?? fileStart.start;
  return lenses.map(([title, command]) => ({
    range: { start, end: start },
    command: { title: title === "run" ? edited.verb : title, command, arguments: [document.uri] },
  }));
}

/** Numbers that follow from the recipe, each behind the first of the values that it follows from. */
export function inlayHints(document: Document, range: Range, workspace: Workspace): InlayHint[] {
  const edited = recipeOf(document, workspace);
  if (!edited) return [];
  const { recipe, verb } = edited;
  const batch = verb === "sft" ? ["train.batch_size"] : ["rollout.n_samples_per_prompt", "rollout.batch_size"];
  const rows = { text: `${arithmetic(recipe, verb, null).rows} rows a step`, beside: batch };
  const plan = planOf(document, workspace);
  const nodes = flatten(treeOf(document));
  return [rows, ...(plan ? planFacts(plan) : [])].flatMap(({ text, beside }) => {
    const node = beside.map((key) => nodes.find((one) => one.key === key)).find((one) => one !== undefined);
    if (!node || !contains(range, node.valueRange.end)) return [];
    return { position: node.valueRange.end, label: `= ${text}`, paddingLeft: true };
  });
}
