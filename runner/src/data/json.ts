/** A JSON text that cannot be taken as it stands; `offset` is in UTF-16 units. */
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
const escapes: Record<string, string> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t", "/": "/", "\\": "\\", '"': '"' };

/**
 * `JSON.parse` that loses nothing silently: a repeated key, a lone surrogate, NaN, and a number that JavaScript cannot
 * hold are errors. A tool call's `arguments` object that holds a number whose text would change (1.0, 1e-07) comes back
 * as its JSON text, which templates take as it is.
 */
export function parseJson(text: string): unknown {
  const reader = new JsonReader(text);
  const value = reader.readValue();
  reader.expectEnd();
  return value;
}

/** As `parseJson` for an array, with the offset at which each element starts. */
export function parseJsonArray(text: string): { value: unknown; offset: number }[] {
  const reader = new JsonReader(text);
  const items = reader.readItems();
  reader.expectEnd();
  return items;
}

class JsonReader {
  private readonly text: string;
  private at = 0;
  /** Numbers so far that JavaScript would write with another text. */
  private reworded = 0;

  constructor(text: string) {
    this.text = text;
  }

  readValue(parentKey?: string): unknown {
    this.skipSpace();
    const char = this.text[this.at];
    if (char === "{") return this.readObject(parentKey);
    if (char === "[") return this.readItems().map((item) => item.value);
    if (char === '"') return this.readString();
    for (const [word, value] of [
      ["true", true],
      ["false", false],
      ["null", null],
    ] as const) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
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
      const isArguments = parentKey === "function" && key === "arguments";
      entries.set(key, isArguments ? this.readArguments() : this.readValue(key));
    } while (this.accept(","));
    this.expect("}", "',' or '}'");
    // fromEntries defines its keys, so that "__proto__" is data.
    return Object.fromEntries(entries);
  }

  private readArguments(): unknown {
    this.skipSpace();
    const [start, before] = [this.at, this.reworded];
    const value = this.readValue();
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
    if (!Number.isFinite(value) || (isInteger && BigInt(source) !== BigInt(value))) {
      throw new JsonError(`the number ${source} does not fit a double; write it as a string`, this.at);
    }
    if (String(value) !== source) this.reworded++;
    this.at += source.length;
    return value;
  }

  private readString(): string {
    if (this.at >= this.text.length) throw new JsonError("the JSON is cut off", this.at);
    const start = this.at;
    this.expect('"', "a string");
    let out = "";
    for (;;) {
      plainText.lastIndex = this.at;
      out += plainText.exec(this.text)![0];
      this.at = plainText.lastIndex;
      const char = this.text[this.at++];
      if (char === undefined) throw new JsonError("the JSON is cut off inside a string", start);
      if (char === '"') break;
      if (char !== "\\") throw new JsonError(`a raw control character ${codeName(char)} in a string`, this.at - 1);
      out += this.readEscape();
    }
    if (!out.isWellFormed()) throw new JsonError("a lone surrogate in a string", start);
    return out;
  }

  private readEscape(): string {
    const char = this.text[this.at++] ?? "";
    if (char !== "u") {
      const plain = escapes[char];
      if (plain === undefined) throw new JsonError(`the escape \\${char} is not JSON`, this.at - 2);
      return plain;
    }
    const digits = this.text.slice(this.at, this.at + 4);
    if (!/^[\da-fA-F]{4}$/.test(digits)) throw new JsonError(`the escape \\u${digits} is not JSON`, this.at - 2);
    this.at += 4;
    return String.fromCharCode(Number.parseInt(digits, 16));
  }

  private accept(char: string): boolean {
    this.skipSpace();
    if (this.text[this.at] !== char) return false;
    this.at++;
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

/** The same JSON with the spaces that Python's `json.dumps` writes: what templates' `tojson` would have made. */
function spaceAsPython(json: string): string {
  return json.replace(/("(?:[^"\\]|\\.)*")|\s+|([,:])/g, (_, string, mark) => string ?? (mark ? `${mark} ` : ""));
}

function codeName(char: string): string {
  return `U+${char.charCodeAt(0).toString(16).padStart(4, "0").toUpperCase()}`;
}
