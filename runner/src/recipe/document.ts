import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  LineCounter,
  type Node,
  type Pair,
  parseDocument,
  type YAMLError,
} from "yaml";
import { messageOf } from "../errors.ts";
import { type Diagnostic, fileStart, type Position, type Range } from "./diagnostic.ts";
import { renamed } from "./import/original.ts";
import { recipeKeys, recipeSections } from "./schema.ts";
import { splitKey, suggestKey } from "./suggest.ts";

/** A key's value as the file has it. */
interface Entry {
  value: unknown;
  range: Range;
}

export interface RecipeDocument {
  /** By dotted key; `extends` is among them. */
  entries: Map<string, Entry>;
  /** Key ranges of the sections that the file opens, by dotted name. */
  sections: Map<string, Range>;
  diagnostics: Diagnostic[];
}

/** Characters. What is longer is no recipe, and would keep an editor busy. */
const maxLength = 1_000_000;
/** Shown of one file; a file of something else would give thousands. */
const maxProblems = 100;

/** A text as YAML, as far as the parser recovers from what is wrong. */
export interface ParsedYaml {
  document: Document.Parsed;
  lines: LineCounter;
}

/** Undefined where the text is too long to be a recipe. */
export function parseYaml(text: string): ParsedYaml | undefined {
  if (text.length > maxLength) return undefined;
  const lines = new LineCounter();
  return { document: parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: false }), lines };
}

/** Reads the tree of a recipe: which known keys it sets, and where; values are not looked at. */
export function readDocument(text: string, file: string, parsed = parseYaml(text)): RecipeDocument {
  if (parsed) return new DocumentReader(parsed, file).read();
  const message = `this file has ${text.length} characters, a recipe at most ${maxLength}`;
  const tooLong = { severity: "error", code: "syntax", message, file, range: fileStart } as const;
  return { entries: new Map(), sections: new Map(), diagnostics: [tooLong] };
}

type Repair = Pick<Diagnostic, "fix" | "meant">;

class DocumentReader {
  private readonly result: RecipeDocument = { entries: new Map(), sections: new Map(), diagnostics: [] };

  constructor(
    private readonly parsed: ParsedYaml,
    private readonly file: string,
  ) {}

  read(): RecipeDocument {
    const errors = [...this.parsed.document.errors, ...this.parsed.document.warnings];
    // What hangs on a broken line is guesswork: syntax comes first.
    if (errors.length > 0) this.reportSyntax(errors);
    else this.readMap("", this.parsed.document.contents);
    return this.result;
  }

  private reportSyntax(errors: YAMLError[]): void {
    const seen = new Set<number>();
    for (const { code, message, pos } of errors) {
      const range = this.range(pos[0], pos[1]);
      // One mistake often makes the parser stumble several times on a line.
      if (seen.has(range.start.line)) continue;
      seen.add(range.start.line);
      this.report("syntax", plainWords(code, message), code === "RESOURCE_EXHAUSTION" ? fileStart : range);
    }
  }

  private readMap(section: string, node: Node | null): void {
    const map = isAlias(node) ? node.resolve(this.parsed.document) : node;
    if (map === null || (isScalar(map) && map.value === null)) return;
    if (!isMap(map)) {
      const what = section
        ? `'${section}' is a section: its keys go below it, indented, as 'key: value'`
        : "a recipe is a map of sections";
      this.report(section ? "not-a-section" : "syntax", what, this.rangeOf(node) ?? fileStart);
      return;
    }
    const seen = new Set<string>();
    for (const pair of map.items as Pair<Node, Node | null>[]) {
      if (this.result.diagnostics.length >= maxProblems) return;
      const name = isScalar(pair.key) ? String(pair.key.value) : String(pair.key);
      const keyRange = this.rangeOf(pair.key) ?? fileStart;
      if (seen.has(name)) this.report("duplicate-key", `duplicate key '${name}': it is already set above`, keyRange);
      else this.readPair(section, name, pair, keyRange);
      seen.add(name);
    }
  }

  private readPair(section: string, name: string, pair: Pair<Node, Node | null>, keyRange: Range): void {
    const key = section ? `${section}.${name}` : name;
    if (name.includes(".")) this.reportUnknown(section, name, keyRange);
    else if (recipeSections.has(key)) {
      this.result.sections.set(key, keyRange);
      this.readMap(key, pair.value);
    } else if (recipeKeys.has(key) || key === "extends") this.readValue(key, pair.value, keyRange);
    else this.reportUnknown(section, name, keyRange);
  }

  private readValue(key: string, node: Node | null, keyRange: Range): void {
    const range = this.rangeOf(node) ?? keyRange;
    try {
      this.result.entries.set(key, { value: node?.toJS(this.parsed.document) ?? null, range });
    } catch (error) {
      // An alias without its anchor, or too many of them.
      this.report("wrong-value", messageOf(error), range);
    }
  }

  private reportUnknown(section: string, name: string, range: Range): void {
    const what = `unknown key '${name}'${section ? ` in '${section}'` : ""}`;
    const known = [...recipeSections.keys(), ...recipeKeys.keys()];
    const renamedTo = renamed[section ? `${section}.${name}` : name]?.[0];
    const meant = renamedTo ?? suggestKey(section, name, section ? known : ["extends", ...known]);
    const isKnown = (key: string) => recipeKeys.has(key) || recipeSections.has(key);
    const dotted = name.includes(".") ? [name, `${section}.${name}`].find(isKnown) : undefined;
    if (name === "<<") {
      const why = "merge keys are not read: set the keys here, or name a parent recipe by extends";
      this.report("unknown-key", why, range);
    } else if (dotted !== undefined) {
      this.report("unknown-key", `${what}: did you mean ${nested(name)}?`, range, { meant: dotted });
    } else if (meant === undefined) {
      const here = known.map(splitKey).filter(({ parent }) => parent === section);
      this.report("unknown-key", `${what}: the keys here are ${here.map(({ leaf }) => leaf).join(", ")}`, range);
    } else if (splitKey(meant).parent === section) {
      const { leaf } = splitKey(meant);
      const fix = { title: `Change to '${leaf}'`, range, newText: leaf };
      this.report("unknown-key", `${what}: did you mean '${leaf}'?`, range, { fix });
    } else {
      this.report("unknown-key", `${what}: did you mean '${meant}'?`, range, { meant });
    }
  }

  private report(code: Diagnostic["code"], message: string, range: Range, repair: Repair = {}): void {
    this.result.diagnostics.push({ severity: "error", code, message, file: this.file, range, ...repair });
  }

  private rangeOf(node: Node | null | undefined): Range | undefined {
    return node?.range ? this.range(node.range[0], node.range[1]) : undefined;
  }

  private range(start: number, end: number): Range {
    return { start: positionAt(this.parsed.lines, start), end: positionAt(this.parsed.lines, end) };
  }
}

export function positionAt(lines: LineCounter, offset: number): Position {
  const { line, col } = lines.linePos(offset);
  return { line: line - 1, character: col - 1 };
}

/** `a.b` as YAML writes it: `a: { b: … }`. */
function nested(key: string): string {
  const names = key.split(".");
  return `${names.join(": { ")}: …${" }".repeat(names.length - 1)}`;
}

/** What the parser says, where its words mean nothing to whoever writes a recipe. */
function plainWords(code: string, message: string): string {
  const said = `${code} ${message}`;
  return parserWords.find(([pattern]) => pattern.test(said))?.[1] ?? message;
}

const parserWords: [RegExp, string][] = [
  [/^TAB_AS_INDENT/, "YAML is indented with spaces, not tabs"],
  [/^MULTIPLE_DOCS/, "a recipe is one YAML document: what follows '---' is another"],
  [/^RESOURCE_EXHAUSTION/, "this is nested too deeply to be read"],
  [
    /flow-map-start at node end/,
    "a text with braces in it, as a reference to the environment has, goes in quotes here",
  ],
  [/Nested mappings/, "a ':' too many: what follows is indented too deep, or a text with ': ' in it needs quotes"],
  [/start at the same column/, "this is not indented as the keys beside it"],
];
