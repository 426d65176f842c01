import {
  type Assignment,
  type Command,
  forEachChild,
  type ParameterExpansionPart,
  parse,
  type SimpleExpansionPart,
  type SyntaxNode,
  type Word as SyntaxWord,
  type WordPart,
} from "unbash";

/** One word of a command as the shell would hand it over. */
export interface Word {
  text: string;
  /** From 1. */
  line: number;
  /** What only running the script would tell: `$(date)`, `$1`. */
  unknown: string[];
}

/** Stands for the blanks of an unquoted variable, at which its word is split. */
const split = "\0";
/** Around the number of a text that only running it would tell; it goes through variables and lists with its word. */
const mark = "\u0001";

/**
 * The commands of a POSIX or Bash script with their variables filled in, in the order of the text: branches are all
 * read, the last assignment above a use counts. Nothing is executed. What no line assigns becomes `${env:NAME}`.
 */
export function shellCommands(script: string): Word[][] {
  return new ShellReader(script).commands;
}

class ShellReader {
  readonly commands: Word[][] = [];
  private readonly text: string;
  /** Of the character at `counted`, from 1. */
  private line = 1;
  private counted = 0;
  private readonly unknown: string[] = [];
  private readonly variables = new Map<string, string[]>();

  constructor(script: string) {
    this.text = script.replaceAll("\r\n", "\n").replaceAll(split, "").replaceAll(mark, "");
    this.read(parse(this.text));
  }

  private read(node: SyntaxNode): void {
    if (node.type === "Command") this.readCommand(node);
    else if (node.type !== "Word") forEachChild(node, (child) => this.read(child));
  }

  private readCommand({ name, prefix, args }: Command): void {
    const words: Word[] = [];
    for (const node of [...prefix, ...(name ? [name] : []), ...args]) {
      if (node.type === "Assignment") this.assign(node);
      if (node.type !== "Word") continue;
      for (; this.counted < node.pos; this.counted++) if (this.text[this.counted] === "\n") this.line++;
      for (const text of this.wordsOf(node)) words.push(this.finish(text));
    }
    // `export A=1` only assigns.
    const declares = args.some(({ type }) => type === "Assignment");
    if (words.length > 0 && !declares) this.commands.push(words);
  }

  private finish(text: string): Word {
    const pieces = text.split(mark);
    const unknown = pieces.filter((_, i) => i % 2 === 1).map((number) => this.unknown[Number(number)]!);
    return { text: pieces.filter((_, i) => i % 2 === 0).join(""), line: this.line, unknown };
  }

  private assign({ name, value, append, index, text }: Assignment): void {
    const isList = value.type === "ArrayValue";
    const before = append ? (this.variables.get(name) ?? (isList ? [] : [`\${env:${name}}`])) : [];
    // An item of its own, `A[0]=1`, is more than a reader of texts keeps track of.
    if (index) this.variables.set(name, [this.asUnknown(text)]);
    else if (isList) this.variables.set(name, [...before, ...value.elements.flatMap((item) => this.wordsOf(item))]);
    else this.variables.set(name, [before.join(" ") + this.textOf(value)]);
  }

  /** Several where an unquoted variable holds blanks, none where it is empty. */
  private wordsOf(word: SyntaxWord): string[] {
    const isGiven = word.parts === undefined || word.parts.some(({ type }) => /Quoted$|^LocaleString$/.test(type));
    return this.textOf(word, split)
      .split(split)
      .filter((text) => text !== "" || isGiven);
  }

  /** `blank` takes the place of blanks in an unquoted variable, which are kept where it says nothing. */
  private textOf({ parts, value }: SyntaxWord, blank?: string): string {
    return parts?.map((part) => this.partOf(part, blank)).join("") ?? value;
  }

  private partOf(part: WordPart, blank?: string): string {
    if (part.type === "DoubleQuoted" || part.type === "LocaleString")
      return part.parts.map((inner) => this.partOf(inner)).join("");
    if (part.type === "SimpleExpansion" || part.type === "ParameterExpansion") {
      const items = this.itemsOf(part);
      // "${LIST[@]}" is a word for each item.
      return items.map((item) => (blank === undefined ? item : item.replace(/\s+/g, blank))).join(split);
    }
    if (/^(Command|Arithmetic|Process)/.test(part.type)) return this.asUnknown(part.text);
    return "value" in part ? part.value : part.text;
  }

  /** What a variable stands for: the items of a list, one text otherwise. */
  private itemsOf(part: SimpleExpansionPart | ParameterExpansionPart): string[] {
    const [, name, isList] = /^\$\{?([A-Za-z_]\w*)(\[[@*]\])?(?=:?[-=?]|\}?$)/.exec(part.text) ?? [];
    if (name === undefined) return [this.asUnknown(part.text)];
    const operation = part.type === "ParameterExpansion" ? part.operation : undefined;
    const usual = operation?.type === "Default" && !operation.operator.endsWith("?") ? operation : undefined;
    const items = this.variables.get(name) ?? [usual ? this.textOf(usual.operand) : `\${env:${name}}`];
    if (usual?.operator.endsWith("=")) this.variables.set(name, items);
    // A list by its name alone is its first item.
    return isList ? items : items.slice(0, 1);
  }

  private asUnknown(text: string): string {
    return `${mark}${this.unknown.push(text) - 1}${mark}`;
  }
}
