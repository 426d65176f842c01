/** Text in, text out: a recipe with a mark where the cursor is. */
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Position, TextEdit } from "vscode-languageserver";
import { TextDocument } from "vscode-languageserver-textdocument";
import { parse } from "yaml";
import { readPolicyShape } from "../../runner/src/recipe/planner/index.ts";
import type { Document, Workspace } from "../src/service/workspace.ts";

export const folder = resolve("/project/recipes");
export const path = `${folder}/sort.yaml`;

/** A recipe with nothing wrong, for the tests to go on with. */
export const sound = `actor: { model_name_or_path: model, init: random }
data: { prompt_dataset: prompts.jsonl }
train: { agent_path: agent.ts }
`;

export function documentAt(file: string, text: string): Document {
  return { uri: pathToFileURL(file).href, path: file, text };
}

/** The text without its mark `|`, and where that was. */
export function marked(text: string, file = path): { document: Document; position: Position } {
  const offset = text.indexOf("|");
  const document = documentAt(file, text.slice(0, offset) + text.slice(offset + 1));
  return { document, position: source(document).positionAt(offset) };
}

export function source({ uri, text }: Document): TextDocument {
  return TextDocument.create(uri, "yaml", 0, text);
}

export function applied(document: Document, edits: TextEdit[]): string {
  return TextDocument.applyEdits(source(document), edits);
}

/** Files by path, those of `folder` by their names alone; every YAML file among them is one of the recipes. */
export function workspaceOf(files: Record<string, string> = {}, columns: string[] = []): Workspace {
  const byPath = new Map(Object.entries(files).map(([name, text]) => [resolve(folder, name), text]));
  const documents = [...byPath].map(([file, text]) => documentAt(file, text));
  const readFile = (file: string) => byPath.get(file);
  return {
    readFile,
    policyShape: (recipe, file) => readPolicyShape(recipe, file, readFile),
    listFolder: (asked) => {
      const below = [...byPath.keys()].filter((file) => file.startsWith(`${resolve(asked)}/`));
      const names = below.map((file) => file.slice(resolve(asked).length + 1).replace(/\/.*/, "/"));
      return [...new Set(names)];
    },
    columns: async () => columns,
    recipes: () => documents.filter(({ path: file }) => file.endsWith(".yaml")),
    code: {
      readersOf: (key) => (key === "rollout.batch_size" ? [{ file: "/runner/loop.ts", line: 11, character: 4 }] : []),
      definitionOf: (kind, name) => ({ file: `/runner/${kind}/${name}.ts`, line: 4, character: 16 }),
    },
  };
}

export const values = (text: string): unknown => parse(text);
