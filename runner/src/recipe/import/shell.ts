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
const assignment = /^([A-Za-z_]\w*)(\+?)=/;
/** Words before a command that are none; what they guard is read as if it ran. */
const prefixes = new Set("if then else elif while until do time exec export local readonly declare { !".split(" "));

/**
 * The commands of a POSIX or Bash script with their variables filled in, in the order of the text: branches are all
 * read, the last assignment above a use counts. Nothing is executed. What no line assigns becomes `${env:NAME}`.
 */
export function shellCommands(script: string): Word[][] {
  const reader = new ShellReader(script);
  while (!reader.atEnd) reader.step();
  reader.endCommand();
  return reader.commands;
}

class ShellReader {
  readonly commands: Word[][] = [];
  private readonly text: string;
  private at = 0;
  /** Of the character at `counted`, from 1. */
  private line = 1;
  private counted = 0;
  private command: Omit<Word, "unknown">[] = [];
  private readonly unknown: string[] = [];
  private readonly variables = new Map<string, string[]>();
  /** Delimiters of the here-documents that begin with the next line. */
  private hereEnds: string[] = [];

  constructor(script: string) {
    this.text = script.replaceAll("\r\n", "\n").replaceAll(split, "").replaceAll(mark, "");
  }

  get atEnd(): boolean {
    return this.at >= this.text.length;
  }

  step(): void {
    const rest = this.text.slice(this.at);
    const [skipped] = /^(?:[^\S\n]|\\\n)+|^#.*/.exec(rest) ?? [];
    const [redirection, operator] = /^\d*(<<-?|[<>]+&?)[ \t]*/.exec(rest) ?? [];
    if (skipped !== undefined) this.at += skipped.length;
    else if (redirection !== undefined) this.redirect(redirection, operator!);
    else if (/^[;&|()\n]/.test(rest)) {
      this.at++;
      this.endCommand();
      if (rest[0] === "\n") this.skipHereDocuments();
    } else this.command.push(...this.word());
  }

  /** Assigns what the command assigns; what is left of it is a command. */
  endCommand(): void {
    const words = this.command;
    this.command = [];
    while (words.length > 0 && (prefixes.has(words[0]!.text) || assignment.test(words[0]!.text))) {
      const { text } = words.shift()!;
      const [all, name, plus] = assignment.exec(text) ?? [];
      if (all === undefined) continue;
      const before = plus ? this.valueOf(name!).join(" ") : "";
      this.variables.set(name!, [before + text.slice(all.length)]);
    }
    if (words.length > 0) this.commands.push(words.map((word) => this.finish(word)));
  }

  private finish({ text, line }: Omit<Word, "unknown">): Word {
    const pieces = text.split(mark);
    const numbers = pieces.filter((_, i) => i % 2 === 1);
    const known = pieces.filter((_, i) => i % 2 === 0).join("");
    return { text: known, line, unknown: numbers.map((number) => this.unknown[Number(number)]!) };
  }

  private redirect(redirection: string, operator: string): void {
    this.at += redirection.length;
    const [target] = this.word();
    if (operator.startsWith("<<") && target) this.hereEnds.push(target.text);
  }

  private skipHereDocuments(): void {
    for (const end of this.hereEnds.splice(0)) {
      for (let line = ""; line !== end && !this.atEnd; ) line = this.readTo("\n").replace(/^\t+/, "");
    }
  }

  /** A word; several where an unquoted variable holds blanks, none where it is empty. */
  private word(): Omit<Word, "unknown">[] {
    for (; this.counted < this.at; this.counted++) if (this.text[this.counted] === "\n") this.line++;
    const { line } = this;
    let [text, isGiven] = ["", false];
    while (!this.atEnd && !/[\s;&|()<>]/.test(this.text[this.at]!)) {
      isGiven ||= /['"\\]/.test(this.text[this.at]!);
      text += this.piece(false);
      const [, name, plus] = /^(\w+)(\+?)=$/.exec(text) ?? [];
      if (name !== undefined && this.text[this.at] === "(") return this.list(name, plus === "+");
    }
    const words = text.split(split).filter((word) => word !== "" || isGiven);
    return words.map((word) => ({ text: word, line }));
  }

  private piece(quoted: boolean): string {
    const char = this.text[this.at++]!;
    if (char === "$" || char === "`") {
      const items = this.expansion(char);
      // "${LIST[@]}" is a word for each item.
      return items.map((item) => (quoted ? item : item.replace(/\s+/g, split))).join(split);
    }
    if (char === "\\") {
      const next = this.text[this.at++] ?? "\\";
      return next === "\n" ? "" : quoted && !'$`"\\'.includes(next) ? `\\${next}` : next;
    }
    if (quoted || (char !== "'" && char !== '"')) return char;
    if (char === "'") return this.readTo("'");
    let text = "";
    while (!this.atEnd && this.text[this.at] !== '"') text += this.piece(true);
    this.at++;
    return text;
  }

  /** What a `$` or a backtick stands for: the items of a list, one text otherwise. */
  private expansion(char: string): string[] {
    const rest = this.text.slice(this.at);
    const variable = /^([A-Za-z_]\w*)|^\{([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=?])([^{}]*))?\}/.exec(rest);
    if (char === "$" && variable) {
      const [all, bare, braced, isList, operator, usual] = variable;
      this.at += all.length;
      const name = (bare ?? braced)!;
      if (operator?.endsWith("=") && !this.variables.has(name)) this.variables.set(name, [usual!]);
      const isEnvironment = operator === undefined || operator.endsWith("?");
      const items = this.variables.get(name) ?? (isEnvironment ? this.valueOf(name) : [usual!]);
      // A list by its name alone is its first item.
      return isList ? items : items.slice(0, 1);
    }
    const length = char === "`" ? rest.indexOf("`") + 1 : closing(rest);
    this.at += length;
    this.unknown.push(char + rest.slice(0, length));
    return [`${mark}${this.unknown.length - 1}${mark}`];
  }

  /** `NAME=(…)`. */
  private list(name: string, adds: boolean): [] {
    const outer = this.command;
    this.command = [];
    this.at++;
    while (!this.atEnd && this.text[this.at] !== ")") {
      if (this.text[this.at] === "\n") this.at++;
      else this.step();
    }
    this.at++;
    const items = this.command.map(({ text }) => text);
    this.variables.set(name, [...(adds ? (this.variables.get(name) ?? []) : []), ...items]);
    this.command = outer;
    return [];
  }

  private valueOf(name: string): string[] {
    return this.variables.get(name) ?? [`\${env:${name}}`];
  }

  private readTo(end: string): string {
    const index = this.text.indexOf(end, this.at);
    const read = this.text.slice(this.at, index < 0 ? this.text.length : index);
    this.at += read.length + 1;
    return read;
  }
}

/** Length of `(…)` or `{…}` at the start; of anything else one character, as `$1` has. */
function closing(text: string): number {
  const [open, close] = text.startsWith("(") ? "()" : "{}";
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    if (text[i] === open) depth++;
    if (text[i] === close) depth--;
    if (depth === 0) return i + 1;
  }
  return text.length;
}
