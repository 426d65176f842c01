import { describe, expect, it } from "vitest";
import type { TextDocumentEdit } from "vscode-languageserver";
import { definition, references } from "../src/service/navigation.ts";
import { rename, renameRange } from "../src/service/rename.ts";
import { applied, documentAt, folder, marked, sound, source, workspaceOf } from "./golden.ts";

const files = {
  "base.yaml": `${sound}rollout: { batch_size: 8 }\n`,
  "child.yaml": "extends: base.yaml\nrollout:\n  batch_size: 16\nalgo: { advantage: { estimator: rloo } }\n",
  "deep/other.yaml": "extends: ../base.yaml\ntrain: { agent_path: ../agent.ts }\n",
  "agent.ts": "",
  "compose.yaml": "services: { rollout: { batch_size: 8 } }\n",
};
const workspace = workspaceOf(files);
const start = { line: 0, character: 0 };

describe("definition", () => {
  it.each([
    ["extends", "extends: ba|se.yaml\nrun: {}\n", `${folder}/base.yaml`],
    ["the agent, in quotes", 'train: { agent_path: "../ag|ent.ts" }\n', "/project/agent.ts"],
    ["a loss of the recipe's own", "actor: { loss_mode: ./lo|ss.ts }\n", `${folder}/loss.ts`],
    ["one dataset of a list", "data:\n  prompt_dataset: [a.jsonl, data/b|.jsonl]\n", `${folder}/data/b.jsonl`],
  ])("of a path: the file of %s", (_, text, expected) => {
    const { document, position } = marked(text);
    const range = { start, end: start };
    expect(definition(document, position)).toEqual({ uri: documentAt(expected, "").uri, range });
  });

  it.each(["rollout: { batch_size: |8 }\n", "run: { name: so|rt }\n", "run: {} # na|me\n", "roll|out: {}\n"])(
    "none: %s",
    (text) => {
      const { document, position } = marked(text);
      expect(definition(document, position)).toBeUndefined();
    },
  );
});

describe("references", () => {
  /** `file: the text there`. */
  function found(text: string): string[] {
    const { document, position } = marked(text);
    return references(document, position, workspace).map(({ uri, range }) => {
      const name = uri.split("/").at(-1)!;
      const entry = Object.entries(files).find(([file]) => file.endsWith(name));
      return `${name}: ${entry ? source(documentAt(name, entry[1])).getText(range) : range.start.line}`;
    });
  }

  it("of a key: every recipe that sets it", () => {
    expect(found("rollout: { |batch_size: 8 }\n")).toEqual(["base.yaml: batch_size", "child.yaml: batch_size"]);
  });

  it("of a path: every recipe that names the same file", () => {
    expect(found("extends: |base.yaml\nrun: {}\n")).toEqual(["child.yaml: base.yaml", "other.yaml: ../base.yaml"]);
    expect(found("train: { agent_path: |agent.ts }\n")).toEqual(["base.yaml: agent.ts", "other.yaml: ../agent.ts"]);
  });

  it("of an estimator: every recipe that takes it", () => {
    expect(found("algo: { advantage: { estimator: |rloo } }\n")).toEqual(["child.yaml: rloo"]);
  });
});

describe("rename", () => {
  /** The texts of the files that change. */
  function renamed(text: string, name: string, recipes: Record<string, string> = files) {
    const { document, position } = marked(text);
    const { documentChanges } = rename(document, position, name, workspaceOf(recipes));
    const texts: Record<string, string> = {};
    const moves: string[] = [];
    for (const change of documentChanges ?? []) {
      if ("kind" in change) moves.push(JSON.stringify(change));
      else {
        const { textDocument, edits } = change as TextDocumentEdit;
        const file = Object.keys(recipes).find((one) => documentAt(`${folder}/${one}`, "").uri === textDocument.uri)!;
        texts[file] = applied(documentAt(file, recipes[file]!), edits as never);
      }
    }
    return { texts, moves };
  }

  it("a key to another of its section, in every recipe", () => {
    expect(renamed("rollout: { |batch_size: 8 }\n", "workers").texts).toEqual({
      "base.yaml": `${sound}rollout: { workers: 8 }\n`,
      "child.yaml": files["child.yaml"].replace("batch_size", "workers"),
    });
  });

  it("a misspelt key at once wherever it stands", () => {
    const recipes = { "a.yaml": "rollout: { batch_sise: 1 }\n", "b.yaml": "rollout:\n  batch_sise: 2\n" };
    expect(renamed("rollout: { |batch_sise: 1 }\n", "batch_size", recipes).texts).toEqual({
      "a.yaml": "rollout: { batch_size: 1 }\n",
      "b.yaml": "rollout:\n  batch_size: 2\n",
    });
  });

  it("a file, with every recipe that names it", () => {
    const { texts, moves } = renamed("train: { agent_path: |agent.ts }\n", "sorter.ts");
    expect(texts).toEqual({
      "base.yaml": files["base.yaml"].replace("agent.ts", "sorter.ts"),
      "deep/other.yaml": files["deep/other.yaml"].replace("../agent.ts", "../sorter.ts"),
    });
    const [oldUri, newUri] = ["agent.ts", "sorter.ts"].map((name) => documentAt(`${folder}/${name}`, "").uri);
    expect(moves).toEqual([JSON.stringify({ kind: "rename", oldUri, newUri })]);
  });

  it.each([
    ["to a key that the schema lacks", "rollout: { |batch_size: 8 }\n", "size", /'rollout.size' is not among them/],
    ["where the other is set too", "rollout: { |top_p: 1 }\n", "batch_size", /has 'rollout.batch_size' already/],
    ["of a file that is not there", "data: { prompt_dataset: |a.jsonl }\n", "b.jsonl", /there is no file/],
    ["onto a file", "train: { agent_path: |agent.ts }\n", "base.yaml", /there is a file .*base.yaml already/],
    ["into another folder", "train: { agent_path: |agent.ts }\n", "../a.ts", /stays in its folder/],
    ["of a number", "rollout: { batch_size: |8 }\n", "9", /only keys and paths/],
  ])("refuses: %s", (_, text, name, message) => {
    const recipes = { ...files, "both.yaml": "rollout: { top_p: 1, batch_size: 2 }\n" };
    expect(() => renamed(text, name, recipes)).toThrow(message);
  });

  it("shows what would change, and nothing for a function of the code", () => {
    const at = (text: string) => {
      const { document, position } = marked(text);
      return renameRange(document, position)?.placeholder;
    };
    expect(at("rollout: { batch|_size: 8 }\n")).toBe("batch_size");
    expect(at("train: { agent_path: lib/|agent.ts }\n")).toBe("agent.ts");
    expect(at("algo: { advantage: { estimator: |rloo } }\n")).toBeUndefined();
  });
});
