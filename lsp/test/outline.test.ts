import { describe, expect, it } from "vitest";
import type { DocumentSymbol } from "vscode-languageserver";
import { documentSymbols, foldingRanges, workspaceSymbols } from "../src/service/outline.ts";
import { documentAt, folder, path, sound, workspaceOf } from "./golden.ts";

const text = `# molt-runner
# Sorts.
actor:
  model_name_or_path: model
  adam:
    lr: 1.0e-3

    # both
    betas: [0.9, 0.95]

rollout: { top_p: 1 }
`;

describe("document symbols", () => {
  const shape = (symbols: DocumentSymbol[]): unknown =>
    Object.fromEntries(symbols.map(({ name, children }) => [name, shape(children!)]));

  it("are the tree of the file", () => {
    expect(shape(documentSymbols(documentAt(path, text)))).toEqual({
      actor: { model_name_or_path: {}, adam: { lr: {}, betas: {} } },
      rollout: { top_p: {} },
    });
    expect(documentSymbols(documentAt(path, text))[1]).toMatchObject({
      range: { start: { line: 10, character: 0 }, end: { line: 10, character: 21 } },
      selectionRange: { start: { line: 10, character: 0 }, end: { line: 10, character: 7 } },
    });
  });

  it("hold while a line does not parse", () => {
    const symbols = documentSymbols(documentAt(path, "run:\n  seed: 1\n  na\nrollout:\n  top_p: 1\n"));
    expect(symbols.map(({ name }) => name)).toContain("rollout");
  });

  it.each(["", "# molt-runner\n", "- a\n- b\n", "actor: [\n", "\ufeff"])("none in %j", (empty) => {
    expect(documentSymbols(documentAt(path, `# molt-runner\n${empty}`)).length).toBeLessThan(2);
    expect(documentSymbols(documentAt("/project/compose.yaml", "services: { a: b }\n"))).toEqual([]);
  });
});

it("folds sections without the blank lines and comments after them", () => {
  const folds = (of: string) =>
    foldingRanges(documentAt(path, of)).map(({ startLine, endLine }) => [startLine, endLine]);
  expect(folds(text)).toEqual([
    [2, 8],
    [4, 8],
  ]);
  expect(folds("data:\n  prompt_dataset:\n    - a\n    - b\n\n# x\nrun:\n  name: >\n    a\n\n\nrollout: {}\n")).toEqual(
    [
      [0, 3],
      [1, 3],
      [6, 8],
      [7, 8],
    ],
  );
});

describe("workspace symbols", () => {
  const workspace = workspaceOf({ "sort.yaml": sound, "deep/imitate.yaml": "data: { output_key: reply }\n" });
  const names = (query: string) => workspaceSymbols(query, workspace).map(({ name }) => name);

  it("are recipes and their keys, by letters in order", () => {
    expect(names("sort.y")).toEqual(["sort.yaml"]);
    expect(names("OutKey")).toEqual(["data.output_key"]);
    expect(names("")).toHaveLength(2 + 5);
    expect(names("nosuch")).toEqual([]);
  });

  it("say which verb a recipe is for, and where it is", () => {
    expect(workspaceSymbols("imitate", workspace)).toMatchObject([
      { containerName: "sft recipe", location: { uri: documentAt(`${folder}/deep/imitate.yaml`, "").uri } },
    ]);
  });
});
