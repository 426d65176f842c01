/** `offset` is in UTF-16 units. */
export class JsonError extends Error {
  readonly offset: number;
  constructor(message: string, offset: number) {
    super(message);
    this.offset = offset;
  }
}

const numberPattern = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids them raw inside a string.
const plainText = /[^"\\\u0000-\u001f]*/y;
const escapePattern = /\\(?:u[\da-fA-F]{4}|["\\/bfnrt])/y;
const words = Object.entries({ true: true, false: false, null: null });

/**
 * `JSON.parse` that loses nothing: repeated keys, lone surrogates, NaN and numbers beyond JavaScript are errors. A tool
 * call's `arguments` with a number whose text would change (1.0, 1e-07) come back as JSON text, which templates take.
 */
export function parseJson(text: string): unknown {
  return readWhole(new JsonReader(text), (reader) => reader.readValue());
}

/** As `parseJson`, but `arguments` (Llama: `parameters`) come back as text, with any number. */
export function parseCalls(text: string): unknown {
  return readWhole(new JsonReader(text, true), (reader) => reader.readValue());
}

export function parseJsonArray(text: string): { value: unknown; offset: number }[] {
  return readWhole(new JsonReader(text), (reader) => reader.readItems());
}

function readWhole<T>(reader: JsonReader, read: (reader: JsonReader) => T): T {
  const value = read(reader);
  reader.expectEnd();
  return value;
}

class JsonReader {
  private readonly text: string;
  private readonly keepsArguments: boolean;
  private at = 0;
  /** Numbers whose text JavaScript would change. */
  private reworded = 0;

  constructor(text: string, keepsArguments = false) {
    this.text = text;
    this.keepsArguments = keepsArguments;
  }

  readValue(parentKey?: string): unknown {
    this.skipSpace();
    const char = this.text[this.at];
    if (char === "{") return this.readObject(parentKey);
    if (char === "[") return this.readItems().map((item) => item.value);
    if (char === '"') return this.readString();
    for (const [word, value] of words) if (this.acceptWord(word)) return value;
    return this.readNumber();
  }

  readItems(): { value: unknown; offset: number }[] {
    this.expect("[", "a list");
    const items: { value: unknown; offset: number }[] = [];
    if (this.accept("]")) return items;
    do {
      this.skipSpace();
      const offset = this.at;
      items.push({ value: this.readValue(), offset });
    } while (this.accept(","));
    this.expect("]", "',' or ']'");
    return items;
  }

  expectEnd(): void {
    this.skipSpace();
    if (this.at < this.text.length) throw new JsonError("text after the end of the value", this.at);
  }

  private readObject(parentKey?: string): Record<string, unknown> {
    this.expect("{", "an object");
    const entries = new Map<string, unknown>();
    if (this.accept("}")) return {};
    do {
      this.skipSpace();
      const keyAt = this.at;
      const key = this.readString();
      if (entries.has(key)) throw new JsonError(`the key ${JSON.stringify(key)} appears twice`, keyAt);
      this.expect(":", "':'");
      const isCall = this.keepsArguments || parentKey === "function";
      const isArguments = isCall && (key === "arguments" || (this.keepsArguments && key === "parameters"));
      entries.set(key, isArguments ? this.readArguments() : this.readValue(key));
    } while (this.accept(","));
    this.expect("}", "',' or '}'");
    // fromEntries takes "__proto__" as data.
    return Object.fromEntries(entries);
  }

  private readArguments(): unknown {
    this.skipSpace();
    const [start, before] = [this.at, this.reworded];
    const value = this.readValue();
    if (this.keepsArguments) return this.text.slice(start, this.at);
    const lossy = this.reworded > before && typeof value === "object";
    return lossy ? spaceAsPython(this.text.slice(start, this.at)) : value;
  }

  private readNumber(): number {
    numberPattern.lastIndex = this.at;
    const source = numberPattern.exec(this.text)?.[0];
    if (source === undefined) {
      if (this.at >= this.text.length) throw new JsonError("the JSON is cut off", this.at);
      const word = /^[\w+-]+/.exec(this.text.slice(this.at, this.at + 20))?.[0] ?? this.text[this.at];
      throw new JsonError(`${word} is not JSON`, this.at);
    }
    const value = Number(source);
    const isInteger = /^-?\d+$/.test(source);
    const fits = Number.isFinite(value) && (!isInteger || BigInt(source) === BigInt(value));
    if (!fits && !this.keepsArguments) {
      throw new JsonError(`the number ${source} does not fit a double; write it as a string`, this.at);
    }
    if (String(value) !== source) this.reworded++;
    this.at += source.length;
    return value;
  }

  private readString(): string {
    const start = this.at;
    this.expect('"', "a string");
    let out = "";
    for (;;) {
      plainText.lastIndex = this.at;
      out += plainText.exec(this.text)![0];
      this.at = plainText.lastIndex;
      const char = this.text[this.at];
      if (char === undefined) throw new JsonError("the JSON is cut off inside a string", start);
      if (char === '"') break;
      if (char !== "\\") throw new JsonError(`a raw control character ${codeName(char)} in a string`, this.at);
      out += this.readEscape();
    }
    this.at++;
    if (!out.isWellFormed()) throw new JsonError("a lone surrogate in a string", start);
    return out;
  }

  private readEscape(): string {
    escapePattern.lastIndex = this.at;
    const source = escapePattern.exec(this.text)?.[0];
    if (source === undefined) {
      const length = this.text[this.at + 1] === "u" ? 6 : 2;
      throw new JsonError(`the escape ${this.text.slice(this.at, this.at + length)} is not JSON`, this.at);
    }
    this.at += source.length;
    return JSON.parse(`"${source}"`);
  }

  private accept(char: string): boolean {
    this.skipSpace();
    return this.acceptWord(char);
  }

  private acceptWord(word: string): boolean {
    if (!this.text.startsWith(word, this.at)) return false;
    this.at += word.length;
    return true;
  }

  private expect(char: string, what: string): void {
    if (this.accept(char)) return;
    if (this.at >= this.text.length) throw new JsonError("the JSON is cut off", this.at);
    throw new JsonError(`expected ${what}, found ${JSON.stringify(this.text[this.at])}`, this.at);
  }

  private skipSpace(): void {
    while (this.at < this.text.length && " \t\n\r".includes(this.text[this.at]!)) this.at++;
  }
}

/** Spaced as Python's `json.dumps`, as templates' `tojson` would. */
function spaceAsPython(json: string): string {
  return json.replace(/("(?:[^"\\]|\\.)*")|\s+|([,:])/g, (_, string, mark) => string ?? (mark ? `${mark} ` : ""));
}

function codeName(char: string): string {
  return `U+${char.charCodeAt(0).toString(16).padStart(4, "0").toUpperCase()}`;
}
