import type { Tokenizer } from "../../data/tokenizer.ts";

/** What of the tokenizer a text needs. */
export type TextTokenizer = Pick<
  Tokenizer,
  "decode" | "decodeBatch" | "encode" | "encodeRendered" | "encodeChat" | "textOf" | "stopTokenIds"
>;

const replacement = "\ufffd";
/** Tokens before the new one that its text may depend on (spaces, joined characters). */
const context = 5;

/**
 * Text of tokens that come one by one: what a token adds is the difference of two decodings of the last few, held back
 * while it ends inside a character. As vLLM, an unfinished character at the very end is never shown.
 */
class Detokenizer {
  private readonly tokenizer: TextTokenizer;
  private readonly skipSpecial: boolean;
  private ids: number[] = [];
  /** Of `ids`, those whose text is out. */
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

export interface TextOptions {
  stop: string[];
  includeStop: boolean;
  skipSpecial: boolean;
  /** Texts of the single tokens are wanted, for log-probabilities. */
  tokenTexts: boolean;
  /** Tokens that end the output; their text is not part of it, unless `includeStop`. */
  stopTokenIds: ReadonlySet<number>;
}

/** The text of one choice, its stop strings found across tokens, and what of it may be shown already. */
export class ChoiceText {
  text = "";
  /** The stop string that has ended it. */
  stopString: string | null = null;
  /** One a token; special tokens keep theirs here. */
  readonly tokenTexts: string[] = [];
  private readonly options: TextOptions;
  private readonly detokenizer: Detokenizer;
  private readonly byToken: Detokenizer;
  private readonly longestStop: number;
  private released = 0;

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

  /** What has become visible since the last call. A text that may be the start of a stop string is held back. */
  release(final: boolean): string {
    const held = final || this.stopString !== null ? 0 : Math.max(0, this.longestStop - 1);
    const end = Math.max(this.released, this.text.length - held);
    const part = this.text.slice(this.released, end);
    this.released = end;
    return part;
  }

  /** The stop string that ends first cuts. */
  private cutAtStop(from: number): void {
    const { stop, includeStop } = this.options;
    let end = Number.POSITIVE_INFINITY;
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
