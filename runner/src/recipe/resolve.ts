import { basename, dirname, extname, resolve } from "node:path";
import { formatPosition } from "../errors.ts";
import { type Diagnostic, fileStart, positionOf, type Range } from "./diagnostic.ts";
import { type ParsedYaml, type RecipeDocument, readDocument } from "./document.ts";
import { type Finding, guardrails, type Verb } from "./guardrails/index.ts";
import { inlineYaml } from "./resolved-yaml.ts";
import { nest, type Recipe, type RecipeKey, recipeKeys } from "./schema.ts";
import { absolutePath, asReference, checkValue, type Environment, expand, hasReference, parseText } from "./values.ts";

interface Place {
  file: string;
  range: Range;
}

/** Where a value comes from. */
export interface Provenance {
  /** The value's, in the file that gives it, or the flag; nowhere of a default. */
  place?: Place;
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
  place: Place;
}

/** A recipe with its file, its parents, the flags and the defaults laid over each other, and what is wrong in them. */
export class Resolution {
  readonly file: string;
  readonly provenance = new Map<string, Provenance>();
  /** Wrong values are replaced by their defaults, so that the other rules can still be asked. */
  readonly recipe: Recipe;
  private readonly sources: Sources;
  private readonly given = new Map<string, Given>();
  private sections: RecipeDocument["sections"] = new Map();
  private readonly diagnostics: Diagnostic[] = [];
  private readonly wrong = new Set<string>();
  private extendsRange = fileStart;

  /** `parsed`: the text, where it is parsed already. */
  constructor(text: string, file: string, flags: Record<string, string>, sources: Sources, parsed?: ParsedYaml) {
    this.file = resolve(file);
    this.sources = sources;
    this.readFileAndParents(text, this.file, [this.file], parsed);
    for (const [key, value] of Object.entries(flags)) {
      this.given.set(key, { kind: "flag", value, place: { file: `--${key}`, range: fileStart } });
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
    for (const finding of guardrails(this.recipe, verb)) {
      // A finding that rests on a value already called wrong is noise.
      if (finding.keys.some((key) => this.wrong.has(key)) || (finding.rule === "required" && this.isOrphan)) continue;
      this.diagnostics.push(this.diagnosticOf(finding));
    }
    const rank = ({ file }: Diagnostic) => (file === this.file ? 0 : file.startsWith("--") ? 2 : 1);
    const before = (a: Diagnostic, b: Diagnostic) =>
      a.range.start.line - b.range.start.line || a.range.start.character - b.range.start.character;
    return this.diagnostics.sort((a, b) => rank(a) - rank(b) || before(a, b));
  }

  /** A parent could not be read: what is missing may be in it. */
  private get isOrphan(): boolean {
    return this.diagnostics.some(({ code }) => code === "extends");
  }

  /** A finding at its place; whoever plans a recipe asks for those of the plan too. */
  diagnosticOf({ severity, rule, keys, message, settings = [] }: Finding): Diagnostic {
    const fixes = settings.flatMap(({ key, value }) => {
      const given = this.given.get(key);
      if (given?.place.file !== this.file) return [];
      const newText = inlineYaml(value);
      return [{ title: `Set ${key} to ${newText}`, range: given.place.range, newText }];
    });
    const meant = rule === "required" ? keys[0] : undefined;
    return { severity, code: "guardrail", rule, message, ...this.placeOf(keys), fix: fixes[0], meant };
  }

  /** The first of the keys that somebody has set; else the section of the first; else the file. */
  private placeOf(keys: string[]): Place {
    const set = keys.find((key) => this.given.has(key));
    if (set !== undefined) return this.given.get(set)!.place;
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

  private readFileAndParents(text: string, file: string, chain: string[], parsed?: ParsedYaml): void {
    const document = readDocument(text, file, parsed);
    this.diagnostics.push(...document.diagnostics);
    const parent = document.entries.get("extends");
    document.entries.delete("extends");
    if (parent) this.readParent(parent.value, { file, range: parent.range }, chain);
    if (chain.length === 1) {
      this.extendsRange = parent?.range ?? fileStart;
      this.sections = document.sections;
    }
    for (const [key, { value, range }] of document.entries) {
      this.given.set(key, { kind: "file", value, place: { file, range } });
    }
  }

  private readParent(value: unknown, place: Place, chain: string[]): void {
    const fail = (message: string) => {
      this.diagnostics.push({ severity: "error", code: "extends", message, ...place });
    };
    if (typeof value !== "string" || value === "") return void fail("extends must be the path of one recipe");
    const path = resolve(dirname(place.file), value);
    const circle = chain.includes(path) ? [...chain.slice(chain.indexOf(path)), path] : [];
    if (circle.length > 0)
      return void fail(`extends goes round in a circle: ${circle.map((file) => basename(file)).join(" → ")}`);
    const text = this.sources.readFile(path);
    if (text === undefined) fail(`there is no recipe at ${path}`);
    else this.readFileAndParents(text, path, [...chain, path]);
  }

  private valueOf(key: RecipeKey): unknown {
    const given = this.given.get(key.key);
    const provenance: Provenance = { place: given?.place };
    this.provenance.set(key.key, provenance);
    const raw = given && this.rawValue(key, given);
    if (!given || raw === undefined) return this.defaultOf(key);
    // What the environment holds may be a secret: the reference is named in its place.
    const refers = given.kind === "file" && [given.value].flat().some(hasReference);
    if (refers) provenance.written = given.value as Provenance["written"];
    const checked = checkValue(key, raw, refers ? given.value : raw);
    if (!("problem" in checked)) return this.finish(key, given, checked.value, provenance);
    this.reject(key, given, "wrong-value", checked.problem, checked.meant);
    return this.defaultOf(key);
  }

  /** The value as typed, with the environment filled in; undefined where that fails. */
  private rawValue(key: RecipeKey, given: Given): unknown {
    const { kind, value } = given;
    const [unread] = key.path ? [value].flat().filter((text) => typeof text === "string" && asReference(text)) : [];
    if (unread !== undefined) {
      const written = asReference(unread as string)!;
      const fix = kind === "flag" ? "give the path in full" : `write '${written}'`;
      const message = `${key.key} has '${unread}', which no shell fills in here: ${fix}`;
      this.reject(key, given, "wrong-value", message, unread === value ? JSON.stringify(written) : undefined);
      return undefined;
    }
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
    const refers = provenance.written !== undefined;
    if ((key.path === undefined && !key.command && !key.file) || value === null) return value;
    const here = key.path === "working directory" || given.kind === "flag";
    const folder = here ? process.cwd() : dirname(given.place.file);
    const texts = [value].flat() as string[];
    // One reference may stand for several paths: they are kept as they are.
    const written = refers && Array.isArray(given.value) === Array.isArray(value) ? [given.value].flat() : texts;
    const isPath = (text: string) => key.path !== undefined || /^\.\.?\//.test(text);
    const paths = texts.map((text, i) => {
      const as = written[i] as string;
      return isPath(text) ? absolutePath(folder, text, as) : { value: text, written: as };
    });
    const inShape = <T>(items: T[]) => (Array.isArray(value) ? items : items[0]!);
    if (refers) provenance.written = inShape(paths.map((path) => path.written));
    return inShape(paths.map((path) => path.value));
  }

  private defaultOf(key: RecipeKey): unknown {
    if (key.key === "run.name")
      return basename(this.file, extname(this.file))
        .replace(/[^\w.-]/g, "-")
        .replace(/^\W/, "_");
    if (!key.required) return key.path && typeof key.default === "string" ? resolve(key.default) : key.default;
    this.wrong.add(key.key);
    if (this.given.has(key.key) || this.isOrphan) return "";
    const message = `${key.key} is missing: ${key.description}`;
    const place = this.placeOf([key.key]);
    this.diagnostics.push({ severity: "error", code: "missing-key", message, meant: key.key, ...place });
    return "";
  }

  /** `newText`: what the value was probably meant to be. */
  private reject(key: RecipeKey, { place }: Given, code: Diagnostic["code"], message: string, newText?: string): void {
    this.wrong.add(key.key);
    const fix = newText === undefined ? undefined : { title: `Change to '${newText}'`, range: place.range, newText };
    this.diagnostics.push({ severity: "error", code, message, ...place, fix });
  }
}
