import { expect, it } from "vitest";
import { nodeAt, treeOf } from "../src/service/tree.ts";
import { recipeOf, yamlOf } from "../src/service/workspace.ts";
import { marked, workspaceOf } from "./golden.ts";

it.each([
  ["the first column of a section, which the one before ends at", "rollout:\n  top_p: 1\n|run:\n  seed: 1\n", "run"],
  ["after a list", "data:\n  prompt_dataset:\n    - a.jsonl\n|run: {}\n", "run"],
  ["after text over lines", "run:\n  name: >\n    a\n|rollout: {}\n", "rollout"],
  ["a nested one", "actor:\n  adam:\n    lr: 1\n  |max_norm: 1\n", "actor.max_norm"],
  ["behind an anchor", "x: &a { q: 1 }\nrun: &b\n  |seed: *a\n", "run.seed"],
  ["with Windows line ends", "run:\r\n  seed: 1\r\n|rollout: {}\r\n", "rollout"],
  ["after characters of two units", "run: { name: 🙂🙂, se|ed: 1 }\n", "run.seed"],
  ["after a mark of its byte order", "\ufeff|run: { seed: 1 }\n", "run"],
])("finds a key: %s", (_, text, key) => {
  const { document, position } = marked(text);
  expect(nodeAt(treeOf(document), position)).toMatchObject({ key, keyRange: { start: { line: position.line } } });
});

it("finds none in comments and blank lines behind a block", () => {
  for (const text of ["run:\n  seed: 1\n|\nrollout: {}\n", "run:\n  seed: 1\n# na|me\nrollout: {}\n"]) {
    const { document, position } = marked(text);
    expect(nodeAt(treeOf(document), position)).toBeUndefined();
  }
});

it("a version is parsed once, for the recipe and for the tree", () => {
  const { document } = marked("rollout: { top_p: 0.5 }\n|");
  yamlOf(document)!.document.contents = null;
  expect(treeOf(document)).toEqual([]);
  expect(recipeOf(document, workspaceOf())!.recipe.rollout.top_p).toBe(1);
});

it("what is too long for a recipe is not parsed", () => {
  const { document } = marked(`rollout: { top_p: 1 }\n${"# filling\n".repeat(1e5)}|`);
  expect(treeOf(document)).toEqual([]);
  expect(recipeOf(document, workspaceOf())!.diagnostics).toMatchObject([{ code: "syntax" }]);
});
