import { posix } from "node:path";
import type { CodeFile } from "./folder.ts";
import type { CodeKind, Mention } from "./mentions.ts";
import type { CodeSymbol } from "./record.ts";

/** Both from 0, `character` in UTF-16 units; `file` is absolute. */
export interface CodeLocation {
  file: string;
  line: number;
  character: number;
}

/** A place that names something, with how long the name is. */
export interface CodePlace extends CodeLocation {
  length: number;
  /** This place is where it is made. */
  defines: boolean;
  /** How the name is written: as a word, in quotes, or as a property that is its own value. */
  form: "word" | "quoted" | "shorthand";
}

export interface CodeName {
  kind: CodeKind;
  name: string;
}

interface Located {
  file: CodeFile;
  mention: Mention;
}

/** Who makes and who uses the things that recipes and runs name, over the files of a moment. */
export class CodeIndex {
  /** By `kind name`. */
  private readonly located = new Map<string, Located[]>();
  private readonly byPath: ReadonlyMap<string, CodeFile>;

  constructor(readonly files: readonly CodeFile[]) {
    this.byPath = new Map(files.map((file) => [slashed(file.path), file]));
    for (const file of files) {
      for (const mention of file.record.mentions) {
        const key = `${mention.kind} ${mention.name}`;
        const named = this.located.get(key) ?? [];
        if (named.push({ file, mention }) === 1) this.located.set(key, named);
      }
    }
  }

  /** Where code reads a recipe key or section. */
  readersOf(key: string): CodeLocation[] {
    return this.placesOf({ kind: "key", name: key }).filter(({ defines }) => !defines);
  }

  /** The function of an estimator, a loss or a filter; the class of an agent; where an event or a metric is made. */
  definitionOf(kind: CodeKind, name: string): CodeLocation | undefined {
    return this.definitionsOf({ kind, name })[0];
  }

  definitionsOf({ kind, name }: CodeName): CodePlace[] {
    return this.find({ kind, name })
      .filter(isMade)
      .map((one) => this.functionOf(one) ?? placeOf(one));
  }

  /** Every place that has the name itself, where it is made first; the function that a registry names has another. */
  placesOf(name: CodeName): CodePlace[] {
    const places = this.find(name).map(placeOf);
    return places.sort((a, b) => Number(b.defines) - Number(a.defines));
  }

  /** Sorted. */
  namesOf(kind: CodeKind): string[] {
    const names = [...this.located].filter(([key, all]) => key.startsWith(`${kind} `) && all.some(isMade));
    return names.map(([key]) => key.slice(kind.length + 1)).sort();
  }

  /** What a place in a file names, or what the function or class there is known as. */
  nameAt({ file, line, character }: CodeLocation): CodeName | undefined {
    const holds = (place: { line: number; character: number; length: number }) =>
      place.line === line && place.character <= character && character <= place.character + place.length;
    const mentions = this.byPath.get(slashed(file))?.record.mentions ?? [];
    const here = mentions.find((mention) => holds(mention) && this.find(mention).some(isMade));
    const name = here ?? this.definedIn(file).find(({ place }) => holds(place))?.name;
    return name && { kind: name.kind, name: name.name };
  }

  /** What a file makes, each at its definition: functions that a registry elsewhere names are among them. */
  definedIn(file: string): { name: CodeName; place: CodePlace }[] {
    const made = [...this.located.values()].flat().filter(isMade);
    const all = made.map((one) => ({ name: one.mention as CodeName, place: this.functionOf(one) ?? placeOf(one) }));
    return all.filter(({ place }) => slashed(place.file) === slashed(file));
  }

  /** The file that an import names, where it is one of these. */
  imported(from: CodeFile, specifier: string): CodeFile | undefined {
    if (!specifier.startsWith(".")) return undefined;
    const path = posix.join(posix.dirname(slashed(from.path)), specifier);
    const names = [path, path.replace(/\.([cm]?)js$/, ".$1ts"), `${path}.ts`, `${path}.js`, `${path}/index.ts`];
    return names.map((name) => this.byPath.get(name)).find((file) => file !== undefined);
  }

  private find({ kind, name }: CodeName): Located[] {
    return this.located.get(`${kind} ${name}`) ?? [];
  }

  /** Follows a registry's identifier through the import of its file to where it is declared. */
  private functionOf({ file, mention }: Located): CodePlace | undefined {
    const { target } = mention;
    if (target === undefined) return undefined;
    const source = file.record.imports.find(({ names }) => names.includes(target))?.from;
    const home = source === undefined ? file : this.imported(file, source);
    const symbol = home?.record.symbols.find(({ name }) => name === target);
    return home && symbol && symbolPlace(home, symbol);
  }
}

function symbolPlace(file: CodeFile, { name, line, character }: CodeSymbol): CodePlace {
  return { file: file.path, line, character, length: name.length, defines: true, form: "word" };
}

function placeOf(one: Located): CodePlace {
  const { line, character, length, form = "word" } = one.mention;
  return { file: one.file.path, line, character, length, defines: isMade(one), form };
}

function isMade({ mention }: Located): boolean {
  return mention.defines === true;
}

function slashed(path: string): string {
  return path.replaceAll("\\", "/");
}
