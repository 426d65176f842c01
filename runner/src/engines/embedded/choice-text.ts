import type { Tokenizer } from "../../data/tokenizer.ts";
import type { Sampling } from "./fields.ts";

export type TextTokenizer = Pick<
  Tokenizer,
  "decode" | "decodeBatch" | "encode" | "encodeRendered" | "encodeChat" | "textOf" | "stopTokenIds"
>;

const replacement = "\ufffd";
/** Tokens that the next one's text may depend on (spaces, joined characters). */
const context = 5;

/**
 * Each token's text: the difference of two decodings of the last few, held back while it ends inside a character. As in
 * vLLM, an unfinished character at the end is never shown.
 */
function detokenizer(tokenizer: TextTokenizer, skipSpecial: boolean): (id: number) => Promise<string> {
  let ids: number[] = [];
  let shown = 0;
  return async (id) => {
    ids.push(id);
    const [before, all] = (await tokenizer.decodeBatch([ids.slice(0, shown), ids], skipSpecial)) as [string, string];
    if (all.length <= before.length || all.endsWith(replacement)) return "";
    ids = ids.slice(-context);
    shown = ids.length;
    return all.slice(before.length);
  };
}

export interface TextOptions extends Pick<Sampling, "stop" | "includeStop" | "skipSpecial" | "stopTokenIds"> {
  tokenTexts: boolean;
}

/** One choice's text, its stop strings found across tokens. */
export class ChoiceText {
  text = "";
  stopString: string | null = null;
  /** With special tokens. */
  readonly tokenTexts: string[] = [];
  private readonly options: TextOptions;
  private readonly textOf: (id: number) => Promise<string>;
  private readonly tokenTextOf: (id: number) => Promise<string>;
  private readonly longestStop: number;
  released = 0;

  constructor(tokenizer: TextTokenizer, options: TextOptions) {
    this.options = options;
    this.textOf = detokenizer(tokenizer, options.skipSpecial);
    this.tokenTextOf = detokenizer(tokenizer, false);
    this.longestStop = Math.max(0, ...options.stop.map((stop) => stop.length));
  }

  async push(id: number): Promise<void> {
    const { tokenTexts, stopTokenIds, includeStop } = this.options;
    if (tokenTexts) this.tokenTexts.push(await this.tokenTextOf(id));
    if (stopTokenIds.has(id) && !includeStop) return;
    const added = await this.textOf(id);
    const from = Math.max(0, this.text.length - this.longestStop + 1);
    this.text += added;
    if (added !== "") this.cutAtStop(from);
  }

  /** What is new to show. What may begin a stop string is held back. */
  release(final: boolean): string {
    const held = final || this.stopString !== null ? 0 : Math.max(0, this.longestStop - 1);
    const end = Math.max(this.released, this.text.length - held);
    const part = this.text.slice(this.released, end);
    this.released = end;
    return part;
  }

  /** The stop string that ends first counts. */
  private cutAtStop(from: number): void {
    const { stop, includeStop } = this.options;
    const found = stop
      .map((text) => ({ text, start: this.text.indexOf(text, from) }))
      .filter(({ start }) => start >= 0);
    const endOf = ({ text, start }: { text: string; start: number }) => start + text.length;
    const [first] = found.sort((one, other) => endOf(one) - endOf(other));
    if (!first) return;
    this.stopString = first.text;
    this.text = this.text.slice(0, includeStop ? endOf(first) : first.start);
  }
}
