import { dirname, join } from "node:path";
import { type CompletionItem, CompletionItemKind, InsertTextMode, MarkupKind } from "vscode-languageserver";
import {
  inlineYaml,
  type Position,
  type RecipeKey,
  recipeKeys,
  recipeSections,
} from "../../../runner/src/recipe/index.ts";
import { type Cursor, cursorAt } from "./cursor.ts";
import { mayBecomeRecipe } from "./documents.ts";
import { describeKey } from "./explain.ts";
import { flatten, treeOf } from "./tree.ts";
import { type Document, recipeOf, type Workspace, yamlOf } from "./workspace.ts";

/** A suggestion before it knows what it replaces. */
interface Suggestion extends Pick<CompletionItem, "label" | "kind" | "detail" | "documentation"> {
  /** Where it is not the label. */
  text?: string;
}

/** What can stand at the cursor: keys and sections, or a key's values, paths and the dataset's columns. */
export async function completions(
  document: Document,
  position: Position,
  workspace: Workspace,
): Promise<CompletionItem[]> {
  const { path, text } = document;
  const cursor = mayBecomeRecipe(path, text) && yamlOf(document) ? cursorAt(text, position) : undefined;
  if (!cursor) return [];
  const suggestions =
    cursor.section === undefined
      ? await values(cursor, document, workspace)
      : keys(cursor, cursor.section, taken(document, cursor));
  return suggestions.map(({ text = "", ...item }, index) => ({
    ...item,
    // In the schema's order, not the alphabet's.
    sortText: String(index).padStart(3, "0"),
    insertTextMode: InsertTextMode.asIs,
    textEdit: { range: cursor.range, newText: `${cursor.afterColon ? " " : ""}${text || item.label}` },
  }));
}

/** Names that the section has already, the one under the cursor excepted. */
function taken(document: Document, { section, range }: Cursor): Set<string> {
  const nodes = treeOf(document);
  const siblings = section === "" ? nodes : flatten(nodes).find(({ key }) => key === section)?.children;
  const others = (siblings ?? []).filter(({ keyRange: { start } }) => {
    return start.line !== range.start.line || start.character !== range.start.character;
  });
  return new Set(others.map(({ name }) => name));
}

function keys(cursor: Cursor, section: string, others: Set<string>): Suggestion[] {
  const prefix = section === "" ? "" : `${section}.`;
  const suggest = (key: string, rest: string, item: Omit<Suggestion, "label">): Suggestion[] => {
    const label = key.slice(prefix.length);
    if (!key.startsWith(prefix) || label.includes(".") || others.has(label)) return [];
    return [{ ...item, label, text: label + (cursor.beforeColon ? "" : rest) }];
  };
  const below = cursor.inFlow ? ": " : `:\n${" ".repeat(cursor.indent + 2)}`;
  const sections = [...recipeSections.values()].flatMap(({ key, description }) =>
    suggest(key, below, { kind: CompletionItemKind.Module, documentation: description }),
  );
  const leaves = [...recipeKeys.values()].flatMap((key) =>
    suggest(key.key, ": ", {
      kind: CompletionItemKind.Property,
      detail: key.default === undefined ? key.type : `${key.type} (${inlineYaml(key.default)})`,
      documentation: { kind: MarkupKind.Markdown, value: describeKey(key) },
    }),
  );
  const parent = suggest("extends", ": ", { kind: CompletionItemKind.Keyword, documentation: "A parent recipe." });
  return [...parent, ...sections, ...leaves];
}

async function values({ key: name, word, inFlow }: Cursor, document: Document, workspace: Workspace) {
  if (name === "extends") return paths(word, dirname(document.path), /\.ya?ml$/, workspace);
  const key = recipeKeys.get(name!);
  if (!key) return [];
  const found = choices(key, inFlow);
  if (key.path || (key.file && word.startsWith("."))) {
    const folder = key.path === "working directory" ? process.cwd() : dirname(document.path);
    found.push(...paths(word, folder, fileEndings[key.key], workspace));
  }
  if (columnKeys.includes(key.key)) found.push(...(await columns(document, workspace)));
  return found;
}

function choices({ default: example, values: words, planned }: RecipeKey, inFlow: boolean): Suggestion[] {
  const detailOf = (word: string) => {
    if (word === inlineYaml(example)) return "default";
    return planned ? "only plan knows it" : undefined;
  };
  const found: Suggestion[] = words.map((label) => {
    return { label, kind: CompletionItemKind.EnumMember, detail: detailOf(label) };
  });
  const isTyped = typeof example === "number" || (Array.isArray(example) && !inFlow);
  if (isTyped) found.unshift({ label: inlineYaml(example), kind: CompletionItemKind.Value, detail: "default" });
  return found;
}

/** Which files a key takes; those without an ending here take folders. */
const fileEndings: Record<string, RegExp> = {
  "train.agent_path": /\.[cm]?[jt]s$/,
  "algo.advantage.estimator": /\.[cm]?[jt]s$/,
  "actor.loss_mode": /\.[cm]?[jt]s$/,
  "data.prompt_dataset": /\.(jsonl|json|csv)(\.gz)?$|\.parquet$/,
  "eval.dataset": /\.(jsonl|json|csv)(\.gz)?$|\.parquet$/,
  "data.chat_template": /\.(jinja2?|j2)$/,
};

/** What lies in the folder that the path so far names. */
function paths(word: string, folder: string, ending: RegExp | undefined, { listFolder }: Workspace): Suggestion[] {
  const typed = word.slice(0, word.lastIndexOf("/") + 1);
  return listFolder(join(folder, typed))
    .filter((name) => !name.startsWith(".") && (name.endsWith("/") || ending?.test(name)))
    .map((name) => ({
      label: typed + name,
      kind: name.endsWith("/") ? CompletionItemKind.Folder : CompletionItemKind.File,
    }));
}

/** Whose columns are read while a menu opens. */
const mostDatasets = 8;
const columnKeys = ["data.input_key", "data.label_key", "data.output_key", "data.tools_key"];

async function columns(document: Document, workspace: Workspace): Promise<Suggestion[]> {
  const data = recipeOf(document, workspace)?.recipe.data;
  const names = await workspace.columns([data?.prompt_dataset ?? []].flat().slice(0, mostDatasets));
  return names.map((label) => ({
    label,
    kind: CompletionItemKind.Field,
    detail: "column of data.prompt_dataset",
    text: /^[a-z_]\w*$/i.test(label) ? inlineYaml(label) : JSON.stringify(label),
  }));
}
