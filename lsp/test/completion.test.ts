import { describe, expect, it } from "vitest";
import type { CompletionItem, TextEdit } from "vscode-languageserver";
import { advantageEstimators } from "../../runner/src/algorithms/advantages/registry.ts";
import { recipeKeys } from "../../runner/src/recipe/index.ts";
import { completions } from "../src/service/completion.ts";
import type { Workspace } from "../src/service/workspace.ts";
import { applied, marked, sound, workspaceOf } from "./golden.ts";

const nothing = workspaceOf();

async function labels(text: string, workspace: Workspace = nothing): Promise<string[]> {
  const { document, position } = marked(text);
  return (await completions(document, position, workspace)).map(({ label }) => label);
}

/** The text after the entry is taken. */
async function taken(text: string, label: string, workspace: Workspace = nothing): Promise<string> {
  const { document, position } = marked(text);
  const item: CompletionItem | undefined = (await completions(document, position, workspace)).find(
    (one) => one.label === label,
  );
  expect(item, `no entry '${label}'`).toBeDefined();
  return applied(document, [item!.textEdit as TextEdit]);
}

/** Keys right below a section, by the schema. */
const keysOf = (section: string) =>
  [...recipeKeys.keys()].filter((key) => key.startsWith(`${section}.`)).map((key) => key.slice(section.length + 1));

describe("keys", () => {
  it("of a section, in the schema's order, those that it has left out", async () => {
    const expected = keysOf("rollout").filter((name) => name !== "top_p");
    expect(await labels("rollout:\n  top_p: 1\n  |\n")).toEqual(expected);
  });

  it.each([
    ["a half word", "rollout:\n  ba|\n", "batch_size", "rollout:\n  batch_size: \n"],
    ["a blank line between keys", "rollout:\n  top_p: 1\n  |\n\nrun:\n  seed: 1\n", "batch_size", undefined],
    ["in braces", "rollout: { top_p: 1, ba| }\n", "batch_size", "rollout: { top_p: 1, batch_size:  }\n"],
    ["in open braces", "rollout: { top_p: 1, |\n", "batch_size", "rollout: { top_p: 1, batch_size: \n"],
    ["in braces over lines", "rollout: {\n  top_p: 1,\n  b|\n}\n", "batch_size", undefined],
    ["in nested braces", "actor: { adam: { l| } }\n", "lr", "actor: { adam: { lr:  } }\n"],
    ["after nested braces", "actor: { adam: { lr: 1 }, m| }\n", "max_norm", undefined],
    ["nested", "actor:\n  adam:\n    |\n", "weight_decay", "actor:\n  adam:\n    weight_decay: \n"],
    ["back out of a nested section", "actor:\n  adam:\n    lr: 1\n  |\n", "max_norm", undefined],
    ["in quotes", 'rollout:\n  "ba|": 4\n', "batch_size", 'rollout:\n  "batch_size": 4\n'],
    ["where a colon follows", "rollout:\n  ba|: 4\n", "batch_size", "rollout:\n  batch_size: 4\n"],
    ["in the middle of a word", "rollout:\n  ba|tch: 4\n", "batch_size", "rollout:\n  batch_size: 4\n"],
    ["below a line that does not parse", "run: }\nrollout:\n  |\n", "batch_size", undefined],
    ["below a brace that is never closed", "run: { seed: 1\nrollout:\n  |\n", "batch_size", undefined],
    ["above other keys", "rollout:\n  ba|\n  top_p: 1\n", "batch_size", "rollout:\n  batch_size: \n  top_p: 1\n"],
    ["below an anchor", "run: &a { seed: 1 }\nrollout: &b\n  |\n", "batch_size", undefined],
    ["behind characters of two units", "run: { name: 🙂, s| }\n", "seed", "run: { name: 🙂, seed:  }\n"],
    ["after text over lines", "run:\n  name: >\n    seed: 1\n  s|\n", "steps", undefined],
    ["with Windows line ends", "rollout:\r\n  ba|\r\n", "batch_size", "rollout:\r\n  batch_size: \r\n"],
  ])("%s", async (_, text, label, expected) => {
    const result = await taken(text, label);
    if (expected !== undefined) expect(result).toBe(expected);
  });

  it("at the top: sections, opened on the next line, and extends", async () => {
    expect(await taken(`${sound}ro|`, "rollout")).toBe(`${sound}rollout:\n  `);
    expect(await taken(`e|\n${sound}`, "extends")).toBe(`extends: \n${sound}`);
    expect(await taken("actor: { a| }\n", "adam")).toBe("actor: { adam:  }\n");
    expect(await taken("actor:\n  a|\n", "adam")).toBe("actor:\n  adam:\n    \n");
    expect(await labels(`${sound}|`)).not.toContain("actor");
  });

  it("in an empty file below a recipes folder, with or without a mark of its byte order", async () => {
    expect(await labels("|")).toContain("actor");
    expect(await taken("\ufeffac|", "actor")).toBe("\ufeffactor:\n  ");
  });

  it.each([
    ["a comment", "rollout:\n  # ba|\n"],
    ["a comment behind a value", "rollout:\n  top_p: 1 # |\n"],
    ["keys on a section's own line", "rollout: |\n"],
    ["keys in a section's list", "rollout:\n  - |\n"],
    ["behind closed braces", "rollout: { top_p: 1 } |\n"],
    ["text over lines", "run:\n  name: |\n    ba|\n".replace("|", ">")],
    ["a section that does not exist", "rolout:\n  |\n"],
    ["an unknown key's value", "rollout:\n  batch_sise: |\n"],
  ])("none: %s", async (_, text) => {
    expect(await labels(text)).toEqual([]);
  });

  it("none in YAML that is no recipe", async () => {
    const { document, position } = marked("services:\n  |\n", "/project/compose.yaml");
    expect(await completions(document, position, nothing)).toEqual([]);
  });
});

describe("values", () => {
  it.each([
    ["words", "algo:\n  kl:\n    estimator: |\n", ["k1", "k2", "k3"]],
    ["words in braces", "algo: { kl: { estimator: k| } }\n", ["k1", "k2", "k3"]],
    ["a registry's names", "algo: { advantage: { estimator: g| } }\n", Object.keys(advantageEstimators)],
    ["true and false", "eval:\n  sampled: |\n", ["true", "false"]],
    ["the default of a number", "rollout:\n  batch_size: |\n", ["128"]],
    ["null beside it", "run:\n  steps: |\n", ["null"]],
    ["a list's default", "actor:\n  eps_clip_low_high: |\n", ["[0.2, 0.2]"]],
    ["a line below its key", "eval:\n  sampled:\n    |\n", ["true", "false"]],
  ])("%s", async (_, text, expected) => {
    expect(await labels(text)).toEqual(expect.arrayContaining(expected));
  });

  it.each([
    ["engine:\n  kind: |\n", { embedded: "default", vllm: undefined }],
    ["fsdp:\n  offload: |\n", { none: "default", optimizer: "only plan knows it", full: "only plan knows it" }],
  ])("says of a word that it is the default, or that only plan knows it: %j", async (text, expected) => {
    const { document, position } = marked(text);
    const items = await completions(document, position, nothing);
    expect(Object.fromEntries(items.map(({ label, detail }) => [label, detail]))).toEqual(expected);
  });

  it("puts the space that YAML needs after the colon", async () => {
    expect(await taken("eval:\n  sampled:|\n", "false")).toBe("eval:\n  sampled: false\n");
  });

  const files = workspaceOf({
    "base.yaml": "",
    "agents/sort.ts": "",
    "agents/notes.md": "",
    "rows.jsonl": "",
    "rows.csv.gz": "",
  });

  it("paths from the recipe's folder, of the kind that the key takes", async () => {
    expect(await labels("train:\n  agent_path: |\n", files)).toEqual(["null", "agents/"]);
    expect(await labels("train: { agent_path: agents/| }\n", files)).toEqual(["null", "agents/sort.ts"]);
    expect(await labels("data:\n  prompt_dataset: |\n", files)).toEqual(
      expect.arrayContaining(["agents/", "rows.jsonl", "rows.csv.gz"]),
    );
    expect(await taken("data:\n  prompt_dataset:\n    - r|\n", "rows.jsonl", files)).toBe(
      "data:\n  prompt_dataset:\n    - rows.jsonl\n",
    );
    expect(await labels("data: { prompt_dataset: [rows.csv.gz, |] }\n", files)).toContain("rows.jsonl");
    expect(await labels("extends: |\nrun: {}\n", files)).toEqual(["base.yaml", "agents/"]);
    const estimators = await labels("algo: { advantage: { estimator: ./agents/| } }\n", files);
    expect(estimators.slice(-2)).toEqual(["on_policy_distill", "./agents/sort.ts"]);
  });

  it("the dataset's columns, in quotes where YAML needs them", async () => {
    const workspace = workspaceOf({}, ["prompt", "the answer", "null"]);
    expect(await labels("data: { input_key: | }\n", workspace)).toEqual(["prompt", "the answer", "null"]);
    expect(await taken("data: { input_key: | }\n", "the answer", workspace)).toBe(
      'data: { input_key: "the answer" }\n',
    );
    expect(await taken("data: { input_key: | }\n", "null", workspace)).toBe('data: { input_key: "null" }\n');
  });
});
