import { basename, dirname, extname, resolve } from "node:path";
import { formatPosition, type SourcePosition } from "../errors.ts";
import { type Diagnostic, type Fix, fileStart, positionOf, type Range } from "./diagnostic.ts";
import { readDocument } from "./document.ts";
import { guardrails, type Verb } from "./guardrails/index.ts";
import { type Recipe, type RecipeKey, recipeKeys } from "./schema.ts";
import { absolutePath, checkValue, type Environment, expand, hasReference, parseText } from "./values.ts";

/** Where a value comes from. */
export interface Provenance {
  kind: "default" | "file" | "flag";
  /** The value's, for people: in the file that gives it, or the flag. */
  position?: SourcePosition;
  /** The same for editors. */
  place?: { file: string; range: Range };
  /** What a resolved recipe writes in the value's place: its references to the environment are kept. */
  written?: string | string[];
}

/** What resolving may read; an editor puts its open documents before the disk. */
export interface Sources {
  /** Undefined where there is no such file. */
  readFile(path: string): string | undefined;
  environment: Environment;
}

interface Given {
  kind: "file" | "flag";
  value: unknown;
  file: string;
  keyRange: Range;
  valueRange: Range;
}

/** A recipe with its file, its parents, the flags and the defaults laid over each other, and what is wrong in them. */
export class Resolution {
  readonly file: string;
  readonly provenance = new Map<string, Provenance>();
  /** Wrong values are replaced by their defaults, so that the other rules can still be asked. */
  readonly recipe: Recipe;
  private readonly sources: Sources;
  private readonly given = new Map<string, Given>();
  private readonly sections = new Map<string, Range>();
  private readonly diagnostics: Diagnostic[] = [];
  private readonly wrong = new Set<string>();
  private extendsRange = fileStart;

  constructor(text: string, file: string, flags: Record<string, string>, sources: Sources) {
    this.file = resolve(file);
    this.sources = sources;
    this.readFileAndParents(text, this.file, [this.file]);
    for (const [key, value] of Object.entries(flags)) {
      this.given.set(key, { kind: "flag", value, file: `--${key}`, keyRange: fileStart, valueRange: fileStart });
    }
    const values = [...recipeKeys.values()].map((key) => [key.key, this.valueOf(key)] as const);
    this.recipe = nest(values) as Recipe;
  }

  /**
   * Asks the guardrails and puts everything in the order of the file; flags come last. In a document that does not
   * parse only that is said: what else seems wrong is guesswork.
   */
  judge(verb: Verb): Diagnostic[] {
    const syntax = this.diagnostics.filter(({ code }) => code === "syntax");
    if (syntax.length > 0) return syntax;
    for (const { keys, severity, message } of guardrails(this.recipe, verb)) {
      // A finding that rests on a value already called wrong is noise.
      if (keys.some((key) => this.wrong.has(key))) continue;
      this.diagnostics.push({ severity, code: "guardrail", message, ...this.placeOf(keys) });
    }
    const rank = ({ file }: Diagnostic) => (file === this.file ? 0 : file.startsWith("--") ? 2 : 1);
    const before = (a: Diagnostic, b: Diagnostic) =>
      a.range.start.line - b.range.start.line || a.range.start.character - b.range.start.character;
    return this.diagnostics.sort((a, b) => rank(a) - rank(b) || before(a, b));
  }

  /** The first of the keys that somebody has set; else the section of the first; else the file. */
  private placeOf(keys: string[]): { file: string; range: Range } {
    for (const key of keys) {
      const given = this.given.get(key);
      if (given) return { file: given.file, range: given.valueRange };
    }
    for (let key = keys[0]!; key.includes("."); ) {
      key = key.slice(0, key.lastIndexOf("."));
      const range = this.sections.get(key);
      if (range) return { file: this.file, range };
    }
    return { file: this.file, range: fileStart };
  }

  /** As shown in this file: what lies in a parent is shown where the parent is named. */
  inFile(diagnostic: Diagnostic): Diagnostic {
    if (diagnostic.file === this.file) return diagnostic;
    const message = `${formatPosition(positionOf(diagnostic))} ${diagnostic.message}`;
    return { ...diagnostic, file: this.file, range: this.extendsRange, message, fix: undefined };
  }

  private readFileAndParents(text: string, file: string, chain: string[]): void {
    const document = readDocument(text, file);
    this.diagnostics.push(...document.diagnostics);
    const parent = document.entries.get("extends");
    document.entries.delete("extends");
    if (parent) this.readParent(parent.value, { file, range: parent.valueRange }, chain);
    if (chain.length === 1) {
      this.extendsRange = parent?.valueRange ?? fileStart;
      for (const [name, range] of document.sections) this.sections.set(name, range);
    }
    for (const [key, entry] of document.entries) this.given.set(key, { kind: "file", file, ...entry });
  }

  private readParent(value: unknown, place: { file: string; range: Range }, chain: string[]): void {
    const fail = (message: string) => this.diagnostics.push({ severity: "error", code: "extends", message, ...place });
    if (typeof value !== "string" || value === "") {
      fail("extends must be the path of one recipe");
      return;
    }
    const path = resolve(dirname(place.file), value);
    if (chain.includes(path)) {
      const circle = [...chain.slice(chain.indexOf(path)), path].map((file) => basename(file));
      fail(`extends goes round in a circle: ${circle.join(" → ")}`);
      return;
    }
    const text = this.sources.readFile(path);
    if (text === undefined) fail(`there is no recipe at ${path}`);
    else this.readFileAndParents(text, path, [...chain, path]);
  }

  private valueOf(key: RecipeKey): unknown {
    const given = this.given.get(key.key);
    if (!given) {
      this.provenance.set(key.key, { kind: "default" });
      return this.defaultOf(key);
    }
    const { kind, file, valueRange } = given;
    const place = { file, range: valueRange };
    const provenance: Provenance = { kind, position: positionOf(place), place };
    this.provenance.set(key.key, provenance);
    const raw = this.rawValue(key, given);
    if (raw === undefined) return this.defaultOf(key);
    const checked = checkValue(key, raw);
    if ("problem" in checked) {
      const fix = checked.meant === undefined ? undefined : replacement(checked.meant, valueRange);
      this.reject(key, given, "wrong-value", checked.problem, fix);
      return this.defaultOf(key);
    }
    return this.finish(key, given, checked.value, provenance);
  }

  /** The value as typed, with the environment filled in; undefined where that fails. */
  private rawValue(key: RecipeKey, given: Given): unknown {
    const { kind, value } = given;
    if (kind === "flag") return parseText(key, value as string);
    const missing: string[] = [];
    const fill = (item: unknown) => {
      if (!hasReference(item)) return item;
      const expanded = expand(item, this.sources.environment);
      missing.push(...expanded.missing);
      return expanded.text;
    };
    const filled = Array.isArray(value) ? value.map(fill) : fill(value);
    if (missing.length === 0) return hasReference(value) ? parseText(key, filled as string) : filled;
    const names = missing.map((name) => `'${name}'`).join(", ");
    this.reject(key, given, "environment", `${key.key} takes ${names} from the environment, where it is not set`);
    return undefined;
  }

  private finish(key: RecipeKey, given: Given, value: unknown, provenance: Provenance): unknown {
    const refers = given.kind === "file" && [given.value].flat().some(hasReference);
    if (refers) provenance.written = given.value as Provenance["written"];
    if (key.path === undefined || value === null) return value;
    const here = key.path === "working directory" || given.kind === "flag";
    const folder = here ? process.cwd() : dirname(given.file);
    const texts = [value].flat() as string[];
    // One reference may stand for several paths: they are kept as they are.
    const written = refers && Array.isArray(given.value) === Array.isArray(value) ? [given.value].flat() : texts;
    const paths = texts.map((text, i) => absolutePath(folder, text, written[i] as string));
    const inShape = <T>(items: T[]) => (Array.isArray(value) ? items : items[0]!);
    if (refers) provenance.written = inShape(paths.map((path) => path.written));
    return inShape(paths.map((path) => path.value));
  }

  private defaultOf(key: RecipeKey): unknown {
    if (key.key === "run.name") return basename(this.file, extname(this.file)).replace(/[^\w.-]/g, "-");
    if (!key.required) return key.path && typeof key.default === "string" ? resolve(key.default) : key.default;
    if (!this.given.has(key.key)) {
      this.diagnostics.push({
        severity: "error",
        code: "missing-key",
        message: `${key.key} is missing: ${key.description}`,
        ...this.placeOf([key.key]),
      });
      this.wrong.add(key.key);
    }
    return "";
  }

  private reject(key: RecipeKey, given: Given, code: Diagnostic["code"], message: string, fix?: Fix): void {
    this.wrong.add(key.key);
    const { file, valueRange: range } = given;
    this.diagnostics.push({ severity: "error", code, message, file, range, fix });
  }
}

function replacement(value: string, range: Range): Fix {
  return { title: `Change to '${value}'`, range, newText: value };
}

/** `[["a.b", 1]]` to `{ a: { b: 1 } }`. */
function nest(values: (readonly [string, unknown])[]): unknown {
  const root: Record<string, unknown> = {};
  for (const [key, value] of values) {
    const names = key.split(".");
    const leaf = names.pop()!;
    let section = root;
    for (const name of names) {
      section[name] ??= {};
      section = section[name] as Record<string, unknown>;
    }
    section[leaf] = value;
  }
  return root;
}
