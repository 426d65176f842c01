import type { ToolSchema } from "../../data/chat-template.ts";
import type { Message, StopReason, ToolCall } from "../types.ts";

/** A model call as every wire says it. What may change logits beyond temperature never gets here: a wire refuses it. */
export interface WireRequest {
  model: string;
  /** In OpenAI's form; content is text, blocks are joined. */
  messages: Message[];
  /** Of the completions wire, where `messages` is empty: the text, or the ids, to go on from. Null on the others. */
  prompt: string | number[] | null;
  tools: ToolSchema[];
  /** Calls wanted; `none` hides the tools from the template. A forced choice is refused. */
  toolChoice: "auto" | "none";
  n: number;
  /** Null: what remains of the context. */
  maxTokens: number | null;
  /** Strings that end the reply; they are not part of its text. */
  stop: string[];
  /** Beside the model's own; only the route by ids has them. */
  stopTokenIds: number[];
  seed: number | null;
  logprobs: boolean;
  stream: boolean;
  /** Only the chat wire asks: the last event of a stream carries the usage. */
  includeUsage: boolean;
  /** vLLM's `return_token_ids`: the answer carries `prompt_token_ids` and each choice's `token_ids`. */
  returnTokenIds: boolean;
  /** Whether the answer shows the reasoning apart: only the Messages wire asks, and gets none unasked. */
  showReasoning: boolean;
  /** Fields of sampling that the recipe's own overrides, by name: for the record (case B4). */
  overridden: string[];
}

/** One sampled reply, parsed. */
export interface WireChoice {
  /** Without the reasoning and without the calls; null when there are only calls. */
  content: string | null;
  reasoning: string | null;
  /** Arguments are the text that was sampled, so that numbers keep theirs; the gateway names calls without an id. */
  toolCalls: (ToolCall & { id: string; function: { arguments: string } })[];
  /** Null where a part of a stream is not the last. */
  stop: StopReason | null;
  /** The stop string that was met. */
  stopString: string | null;
  /** vLLM's, of the embedded engine: the string, or the token id, that the request brought. */
  stopReason?: string | number | null;
  tokenIds: number[];
  /** One each token, where `logprobs` is asked; the token's text beside it. */
  logprobs: { token: string; logprob: number }[] | null;
}

export interface WireReply {
  id: string;
  /** Seconds since 1970. */
  created: number;
  model: string;
  promptTokenIds: number[];
  choices: WireChoice[];
}

export type WireHead = Omit<WireReply, "choices">;

/** One server-sent event; `data` is JSON unless it is text (`[DONE]`). */
export interface WireEvent {
  event?: string;
  data: object | string;
}

/** Refused by a wire: becomes that wire's own error body. */
export class WireError extends Error {
  readonly status: number;
  /** The request field at fault, dotted. */
  readonly param: string | null;

  constructor(status: number, message: string, param: string | null = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** One HTTP protocol in both directions: pure functions between its JSON and the neutral form. */
export interface Wire {
  /** Throws a `WireError` for what it cannot map. */
  parse(body: unknown): WireRequest;
  /** The body of the whole answer. */
  answer(request: WireRequest, reply: WireReply): object;
  /** The same answer as a stream, in the wire's exact order of events. */
  events(request: WireRequest, reply: WireReply): WireEvent[];
  /** The wire's own error body. */
  error(status: number, message: string, param: string | null): object;
}

/** Whose field table holds: the embedded engine samples as a request asks, the gateway as the recipe says. */
export type WireHost = "gateway" | "engine";

/** A wire whose answer can be streamed as it is sampled. */
export interface TextWire extends Wire {
  parse(body: unknown, host?: WireHost): WireRequest;
  /** Chunks before the first token. */
  opening(request: WireRequest, head: WireHead): object[];
  /** A part of a choice; `from`: the tokens and characters of it that were sent before. */
  chunk(request: WireRequest, head: WireHead, part: WireChoice, index: number, from: StreamPosition): object;
  /** The last chunk, where usage is asked. */
  usage(reply: WireReply): object;
}

export interface StreamPosition {
  tokens: number;
  characters: number;
}
