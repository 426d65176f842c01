import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Tokenizer as NativeTokenizer } from "tokenizers";
import type { Message } from "../agents/types.ts";
import { fileError, messageOf } from "../errors.ts";
import { renderTurns } from "./assistant-turns.ts";
import { ChatTemplate, type RenderOptions, type ToolSchema } from "./chat-template.ts";
import { type Config, readConfig } from "./config-json.ts";

export interface TokenizerOptions {
  /** A Jinja file in place of the folder's. */
  chatTemplate?: string | null;
  /** The model's, beside the tokenizer's own. */
  eosTokenIds?: number[];
}

/** Tokenizer and chat template of a Hugging Face folder; ids as by `transformers`. */
export class Tokenizer {
  readonly vocabSize: number;
  readonly bosTokenId: number | null;
  readonly eosTokenIds: number[];
  readonly chatTemplate: string;
  private readonly native: NativeTokenizer;
  private readonly template: ChatTemplate;
  private addsBos = false;
  /** End of sequence, and what the template closes an assistant's turn with. */
  stopTokenIds: number[] = [];

  private constructor(folder: string, native: NativeTokenizer, config: Config, options: TokenizerOptions) {
    this.native = native;
    this.vocabSize = native.getVocabSize(true);
    const texts = specialTexts(config);
    this.bosTokenId = texts.bos_token === undefined ? null : this.idOf(texts.bos_token);
    const eos = texts.eos_token === undefined ? null : this.idOf(texts.eos_token);
    this.eosTokenIds = [...new Set([...(options.eosTokenIds ?? []), ...(eos === null ? [] : [eos])])];
    const { source, where } = findTemplate(folder, config, options.chatTemplate);
    this.chatTemplate = source;
    this.template = new ChatTemplate(source, where, texts);
  }

  /** What `stopTokenIds` look like. */
  get stopTexts(): string[] {
    return this.stopTokenIds.map((id) => this.textOf(id)!);
  }

  static async load(folder: string, options: TokenizerOptions = {}): Promise<Tokenizer> {
    const file = join(folder, "tokenizer.json");
    if (!existsSync(file)) {
      const what = existsSync(folder) ? "this folder has no tokenizer.json" : "this tokenizer folder does not exist";
      const fix = "save the tokenizer with transformers' save_pretrained, which writes tokenizer.json";
      throw fileError(folder, what, fix);
    }
    const { Tokenizer: Native } = await import("tokenizers");
    const text = readFileSync(file, "utf8");
    let native: NativeTokenizer;
    let special: Set<number>;
    try {
      native = Native.fromString(text);
      special = specialTokenIds(JSON.parse(text));
    } catch (error) {
      throw fileError(file, `this file cannot be read: ${messageOf(error)}`);
    }
    native.disablePadding();
    native.disableTruncation();
    const configFile = join(folder, "tokenizer_config.json");
    const config = existsSync(configFile) ? readConfig(configFile) : {};
    const tokenizer = new Tokenizer(folder, native, config, options);
    await tokenizer.inspect(config, special);
    return tokenizer;
  }

  /** Added tokens included. */
  get vocabulary(): Map<string, number> {
    return new Map(Object.entries(this.native.getVocab(true)));
  }

  /** Special tokens in the text become ids; none is added. */
  async encode(text: string): Promise<number[]> {
    if (text === "") return [];
    return (await this.native.encode(text, null, { addSpecialTokens: false })).getIds();
  }

  decode(ids: number[]): Promise<string> {
    return this.native.decode(ids, false);
  }

  decodeBatch(ids: number[][], skipSpecial = false): Promise<string[]> {
    return this.native.decodeBatch(ids, skipSpecial);
  }

  idOf(token: string): number | null {
    return this.native.tokenToId(token);
  }

  textOf(id: number): string | null {
    return this.native.idToToken(id);
  }

  get repeatsRounds(): boolean {
    return this.template.repeatsRounds;
  }

  /** Assistants' turns in a rendering of the whole conversation. */
  renderTurns(messages: Message[], tools?: ToolSchema[]) {
    return renderTurns(this.template, this.stopTexts, messages, tools);
  }

  renderChat(messages: Message[], options?: RenderOptions): string {
    return this.template.render(messages, options);
  }

  /** Exactly one BOS, whether the template writes it or not. */
  async encodeRendered(text: string): Promise<number[]> {
    return this.withOneBos(await this.encode(text));
  }

  async encodeRenderedBatch(texts: string[]): Promise<number[][]> {
    const encodings = await this.native.encodeBatch(texts, { addSpecialTokens: false });
    return encodings.map((encoding) => this.withOneBos(encoding.getIds()));
  }

  private withOneBos(ids: number[]): number[] {
    if (this.bosTokenId === null || !(this.addsBos || ids[0] === this.bosTokenId)) return ids;
    const first = ids.findIndex((id) => id !== this.bosTokenId);
    return [this.bosTokenId, ...ids.slice(first < 0 ? ids.length : first)];
  }

  /** The one path from messages to ids. */
  encodeChat(messages: Message[], options?: RenderOptions): Promise<number[]> {
    return this.encodeRendered(this.renderChat(messages, options));
  }

  private async inspect(config: Config, special: ReadonlySet<number>): Promise<void> {
    const empty = (await this.native.encode("", null, { addSpecialTokens: true })).getIds();
    this.addsBos = this.bosTokenId !== null && Boolean(config.add_bos_token ?? empty[0] === this.bosTokenId);
    const reply = "molt-probe";
    const shown = this.renderChat([
      { role: "user", content: "a" },
      { role: "assistant", content: reply },
    ]);
    // What the template writes right after an assistant's text.
    const [next = -1] = await this.encode(shown.split(reply).slice(1).at(-1) ?? "");
    this.stopTokenIds = [...new Set([...this.eosTokenIds, ...(special.has(next) ? [next] : [])])];
  }
}

function specialTokenIds({ added_tokens: added }: { added_tokens?: { id: number; special: boolean }[] }): Set<number> {
  return new Set((added ?? []).filter(({ special }) => special).map(({ id }) => id));
}

/** `bos_token`, …: a text, or an object that holds it. */
function specialTexts(config: Config): Record<string, string> {
  const texts = Object.entries(config).flatMap(([key, value]) => {
    const text = typeof value === "object" && value !== null ? (value as Config).content : value;
    return key.endsWith("_token") && typeof text === "string" ? [[key, text] as const] : [];
  });
  return Object.fromEntries(texts);
}

function findTemplate(
  folder: string,
  config: Config,
  override: string | null | undefined,
): { source: string; where: string } {
  if (override) {
    if (!statSync(override, { throwIfNoEntry: false })?.isFile()) {
      throw fileError(override, "data.chat_template: this file does not exist");
    }
    return { source: readFileSync(override, "utf8"), where: override };
  }
  const file = join(folder, "chat_template.jinja");
  if (existsSync(file)) return { source: readFileSync(file, "utf8"), where: file };
  const where = join(folder, "tokenizer_config.json");
  const named = Array.isArray(config.chat_template)
    ? config.chat_template.find(({ name }: { name?: string }) => name === "default")?.template
    : config.chat_template;
  if (typeof named === "string") return { source: named, where };
  throw fileError(
    folder,
    "this tokenizer has no chat template",
    "name a Jinja file with data.chat_template, or take the folder of an instruction-tuned model",
  );
}
