import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import type { TextDocument } from "vscode-languageserver-textdocument";
import { type CodeFile, CodeIndex, type CodeSource, codeSources } from "../../runner/src/code/index.ts";
import { entriesOf, filesBelow } from "../../runner/src/files.ts";
import type { Recipe } from "../../runner/src/recipe/index.ts";
import { type ModelShape, readPolicyShape } from "../../runner/src/recipe/planner/index.ts";
import { columnsOf } from "./columns.ts";
import type { CodeWorkspace } from "./service/code/workspace.ts";
import { isRecipe } from "./service/documents.ts";
import type { Document } from "./service/workspace.ts";

/** Of folders, one in another, that are looked through for recipes. */
const depth = 8;
/** Larger than any recipe, and any JSON that planning reads. */
const maxBytes = 32_000_000;
/** Short beside a keystroke's work. */
const sliceMs = 5;

/** The disk and, before it, what is open in the editor. */
export class Files implements CodeWorkspace {
  roots: string[] = [];
  /** By path; all of one moment, since what is read from a recipe rests on its parents. */
  private documents = new Map<string, Document | undefined>();
  private yamlFiles: string[] | undefined;
  /** By recipe and model. To find the recipe that will make a model takes time: a keystroke does not ask again. */
  private readonly shapes = new Map<string, ModelShape | Error>();
  private sources: CodeSource[] | undefined;
  private index: CodeIndex | undefined;

  /** `open`: what the editor has open, by path. */
  constructor(private readonly open: ReadonlyMap<string, TextDocument>) {}

  /** After a change of a recipe or of code in the editor, or of anything on disk. */
  forget(what: "recipes" | "code" | "disk"): void {
    this.documents.clear();
    if (what === "disk") this.yamlFiles = undefined;
    if (what === "disk") this.shapes.clear();
    if (what !== "recipes") this.index = undefined;
  }

  document(path: string): Document | undefined {
    if (this.documents.has(path)) return this.documents.get(path);
    const open = this.open.get(path);
    const text = open?.getText() ?? readText(path);
    // The editor's spelling of an address may differ from ours.
    const document = text === undefined ? undefined : { uri: open?.uri ?? pathToFileURL(path).href, path, text };
    this.documents.set(path, document);
    return document;
  }

  readonly readFile = (path: string): string | undefined => this.document(path)?.text;

  listFolder(path: string): string[] {
    return entriesOf(path).map((entry) => {
      const status = entry.isSymbolicLink() ? statSync(join(path, entry.name), { throwIfNoEntry: false }) : entry;
      return status?.isDirectory() ? `${entry.name}/` : entry.name;
    });
  }

  async columns(paths: string[]): Promise<string[]> {
    const found = await Promise.all(paths.map(columnsOf));
    return [...new Set(found.flat())];
  }

  recipes(): Document[] {
    this.yamlFiles ??= this.roots.flatMap((root) => filesBelow(root, /\.ya?ml$/i, depth));
    const paths = new Set([...this.yamlFiles, ...this.open.keys()]);
    const documents = [...paths].flatMap((path) => this.document(path) ?? []);
    return documents.filter(({ path, text }) => isRecipe(path, text));
  }

  policyShape(recipe: Recipe, file: string): ModelShape {
    const key = `${file}\n${recipe.actor.model_name_or_path}`;
    let shape = this.shapes.get(key);
    if (!shape) {
      try {
        shape = readPolicyShape(recipe, file, this.readFile);
      } catch (error) {
        shape = error as Error;
      }
      this.shapes.set(key, shape);
    }
    if (shape instanceof Error) throw shape;
    return shape;
  }

  /** The workspace's own code and the runner's, once where several roots have it. */
  codeSources(): CodeSource[] {
    const roots = this.roots.length > 0 ? this.roots : [process.cwd()];
    this.sources ??= [...new Map(roots.flatMap(codeSources).map((source) => [source.folder.root, source])).values()];
    return this.sources;
  }

  get code(): CodeIndex {
    // Two folders of a workspace may load one runner.
    this.index ??= new CodeIndex([...new Map([...this.codeFiles()].map((file) => [file.path, file])).values()]);
    return this.index;
  }

  /** Parses what has changed, in slices that let other work go between; `code` is made at once after it. */
  async readCode(): Promise<void> {
    if (this.index) return;
    let since = performance.now();
    for (const _ of this.codeFiles()) {
      if (performance.now() - since < sliceMs) continue;
      await setImmediate();
      since = performance.now();
    }
  }

  private *codeFiles(): Generator<CodeFile> {
    for (const { folder } of this.codeSources()) yield* folder.read((path) => this.open.get(path)?.getText());
  }
}

/** Undefined for what is no text file: a device, a folder, a model's weights. */
function readText(path: string): string | undefined {
  try {
    const status = statSync(path);
    return status.isFile() && status.size < maxBytes ? readFileSync(path, "utf8") : undefined;
  } catch {
    return undefined;
  }
}
