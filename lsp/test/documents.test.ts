import { describe, expect, it } from "vitest";
import { isRecipe } from "../src/service/documents.ts";

describe("which YAML is a recipe", () => {
  it.each([
    ["two sections, one of them telling", "/a/sort.yaml", "actor:\n  init: random\ndata:\n  max_len: 64\n"],
    ["a section below a recipes folder", "/a/recipes/deep/sort.yml", "run: { name: sort }\n"],
    ["the same on Windows", "c:\\a\\recipes\\sort.yaml", "run: { name: sort }\n"],
    ["a first line that says so", "/a/child.yaml", "# molt-runner recipe\nextends: parent.yaml\n"],
    ["a parent and a section", "/a/child.yaml", "extends: parent.yaml\nrun: { name: child }\n"],
    ["half typed, not YAML yet", "/a/sort.yaml", "actor: { init: \nrollout:\n  - [\n"],
    ["Windows line ends", "/a/sort.yaml", "actor:\r\nrollout:\r\n"],
  ])("%s", (_, path, text) => {
    expect(isRecipe(path, text)).toBe(true);
  });

  it.each([
    ["another tool's parameters", "/a/params.yaml", "data: { path: x }\ntrain: { epochs: 3 }\neval: { steps: 1 }\n"],
    ["a workflow", "/a/.github/workflows/ci.yml", "on: push\njobs:\n  actor:\n  rollout:\n"],
    ["another tool's parent", "/a/lint.yaml", "extends: shared\nrules: { run: 1 }\n"],
    ["a Compose file below recipes", "/a/recipes/compose.yaml", "services:\n  run: { image: x }\n"],
    ["sections in a comment or a longer word", "/a/x.yaml", "# actor:\nactors: 1\nrollout_ref: 2\n"],
    ["an empty file", "/a/recipes/new.yaml", ""],
    ["another language", "/a/recipes/readme.md", "actor:\nrollout:\n"],
    ["a marker that is not in the first line", "/a/x.yaml", "a: 1\n# molt-runner\n"],
  ])("not %s", (_, path, text) => {
    expect(isRecipe(path, text)).toBe(false);
  });
});
