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
 * A token's text is the difference of two decodings of the last few, held back while it ends inside a character. As in
 * vLLM, an unfinished character at the end is never shown.
 */
class Detokenizer {
  private readonly tokenizer: TextTokenizer;
  private readonly skipSpecial: boolean;
  private ids: number[] = [];
  private shown = 0;

  constructor(tokenizer: TextTokenizer, skipSpecial: boolean) {
    this.tokenizer = tokenizer;
    this.skipSpecial = skipSpecial;
  }

  async push(id: number): Promise<string> {
    this.ids.push(id);
    const parts = [this.ids.slice(0, this.shown), this.ids];
    const [before, all] = await this.tokenizer.decodeBatch(parts, this.skipSpecial);
    if (all!.length <= before!.length || all!.endsWith(replacement)) return "";
    const start = Math.max(0, this.ids.length - context);
    this.ids = this.ids.slice(start);
    this.shown = this.ids.length;
    return all!.slice(before!.length);
  }
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
  private readonly detokenizer: Detokenizer;
  private readonly byToken: Detokenizer;
  private readonly longestStop: number;
  released = 0;

  constructor(tokenizer: TextTokenizer, options: TextOptions) {
    this.options = options;
    this.detokenizer = new Detokenizer(tokenizer, options.skipSpecial);
    this.byToken = new Detokenizer(tokenizer, false);
    this.longestStop = Math.max(0, ...options.stop.map((stop) => stop.length));
  }

  async push(id: number): Promise<void> {
    const { tokenTexts, stopTokenIds, includeStop } = this.options;
    if (tokenTexts) this.tokenTexts.push(await this.byToken.push(id));
    if (stopTokenIds.has(id) && !includeStop) return;
    const added = await this.detokenizer.push(id);
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
    let end = Infinity;
    let start = 0;
    for (const candidate of stop) {
      const at = this.text.indexOf(candidate, from);
      if (at < 0 || at + candidate.length >= end) continue;
      end = at + candidate.length;
      start = at;
      this.stopString = candidate;
    }
    if (this.stopString !== null) this.text = this.text.slice(0, includeStop ? end : start);
  }
}
