import type { FastifyReply } from "fastify";
import { messageOf } from "../../errors.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Choice, type ChoicesRequest, type OnDelta, startChoices } from "./choices.ts";
import {
  type Json,
  readFlag,
  readSampling,
  readStreamOptions,
  readText,
  type Sampling,
  type ServedModel,
} from "./fields.ts";
import { errorBody, HttpError, toHttpError } from "./http-error.ts";
import type { Scheduler } from "./scheduler.ts";

export interface ServerLimits {
  /** Bytes of a request's body. */
  bodyBytes: number;
  /** Sequences running and waiting, of all requests together. */
  sequences: number;
  /** Seconds in which a client must have sent its headers, and its whole request. */
  headerSeconds: number;
  requestSeconds: number;
}

/** What the generating routes share. */
export interface ServerContext {
  scheduler: Scheduler;
  model: ServedModel;
  limits: ServerLimits;
  /** Of answers: the name and version of this server. */
  fingerprint: string;
  /** The model folder's; rejects with the reason where it has none. */
  tokenizer: () => Promise<TextTokenizer>;
  /** For requests that bring none. */
  nextSeed: () => number;
}

/** How a route puts choices into words. */
export interface Answering {
  whole(choices: Choice[]): string | Promise<string>;
  /** Null for one whole answer. */
  stream: {
    /** Sent before the first token. */
    opening: unknown[];
    /** A chunk, or null where there is nothing to say yet. */
    delta: (...delta: Parameters<OnDelta>) => unknown;
    /** The last chunk's usage; null where it was not asked for. */
    usage: ((choices: Choice[]) => unknown) | null;
  } | null;
}

/** Runs a request to its answer; a client that goes away ends it. */
export function respond(reply: FastifyReply, context: ServerContext, request: ChoicesRequest, how: Answering): void {
  checkQueue(context, request);
  reply.hijack();
  const { stream } = how;
  const events = stream && new EventStream(reply);
  const onDelta: OnDelta | undefined = stream
    ? (...delta) => {
        const chunk = stream.delta(...delta);
        if (chunk !== null) events!.send(chunk);
      }
    : undefined;
  for (const chunk of stream?.opening ?? []) events!.send(chunk);
  const { done, abort } = startChoices(context.scheduler, request, onDelta);
  reply.raw.once("close", () => {
    if (!reply.raw.writableFinished) abort();
  });
  const fail = (error: unknown) => (events ? events.end(error) : sendError(reply, error));
  const finish = (choices: Choice[]) => {
    if (events) {
      if (stream?.usage) events.send(stream.usage(choices));
      return events.end();
    }
    const json = how.whole(choices);
    if (typeof json === "string") sendJson(reply, json);
    else json.then((text) => sendJson(reply, text), fail);
  };
  done.then(finish).catch(fail);
}

/** Refuses what would wait behind more than the queue may hold. */
function checkQueue({ scheduler, limits }: ServerContext, { prompts, sampling }: ChoicesRequest): void {
  const wanted = prompts.length * sampling.n;
  const most = limits.sequences;
  if (wanted > most) {
    throw new HttpError(400, `the request asks for ${wanted} sequences; the engine takes at most ${most} at once`);
  }
  if (scheduler.load + wanted <= most) return;
  const state = `${scheduler.load} of at most ${most} sequences are running or waiting`;
  throw new HttpError(503, `the engine is full: ${state}; try again later`);
}

/** Bytes that a client may leave unread before it is taken for gone. */
const mostUnread = 4 * 1024 * 1024;

/** Server-sent events on a reply. */
class EventStream {
  private readonly reply: FastifyReply;

  constructor(reply: FastifyReply) {
    this.reply = reply;
    reply.raw.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
  }

  send(data: unknown): void {
    const { raw } = this.reply;
    if (raw.destroyed) return;
    raw.write(`data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`);
    if (raw.writableLength > mostUnread) raw.destroy();
  }

  end(error?: unknown): void {
    if (error !== undefined) this.send(errorBody(error));
    this.send("[DONE]");
    this.reply.raw.end();
  }
}

/** Past fastify's serializer: a seventh of its cost, on the one route that counts. */
function sendJson(reply: FastifyReply, json: string, status = 200, headers: Record<string, string> = {}): void {
  if (reply.raw.destroyed) return;
  reply.hijack();
  const length = Buffer.byteLength(json);
  reply.raw.writeHead(status, { "content-type": "application/json", "content-length": length, ...headers });
  reply.raw.end(json);
}

export function sendError(reply: FastifyReply, error: unknown): void {
  if (reply.raw.headersSent) return;
  const { status } = toHttpError(error);
  const headers: Record<string, string> = status === 503 ? { "retry-after": "1" } : {};
  sendJson(reply, JSON.stringify(errorBody(error)), status, headers);
}

/** The prompt of each once, however many samples it has. */
export function usageOf({ prompts }: ChoicesRequest, choices: Choice[]) {
  const promptTokens = prompts.reduce((sum, { length }) => sum + length, 0);
  const completionTokens = choices.reduce((sum, { output }) => sum + output.tokenIds.length, 0);
  const total_tokens = promptTokens + completionTokens;
  return { prompt_tokens: promptTokens, total_tokens, completion_tokens: completionTokens };
}

/** As whole answers carry it; a stream has the three numbers alone. */
export function fullUsage(request: ChoicesRequest, choices: Choice[]) {
  return { ...usageOf(request, choices), prompt_tokens_details: null, completion_tokens_details: null };
}

export async function textTokenizer({ tokenizer }: ServerContext): Promise<TextTokenizer> {
  try {
    return await tokenizer();
  } catch (error) {
    throw new HttpError(400, `this engine serves token ids only: ${messageOf(error)}`);
  }
}

/** A request of an OpenAI route. */
export interface TextCall extends ChoicesRequest {
  tokenizer: TextTokenizer;
  stream: boolean;
  includeUsage: boolean;
  returnTokenIds: boolean;
  /** Tokens are named by their ids in log-probabilities. */
  tokensAsIds: boolean;
}

/** What both OpenAI routes read in the same way. */
export function readTextCall(body: Json, context: ServerContext) {
  const call = {
    sampling: withSeed(readSampling(body, "", context.model), context),
    cacheSalt: readSalt(body),
    returnTokenIds: readFlag(body, "return_token_ids", false),
    tokensAsIds: readFlag(body, "return_tokens_as_token_ids", false),
    ...readStreamOptions(body),
  };
  if (call.stream && call.sampling.promptLogprobs) {
    throw new HttpError(400, "prompt_logprobs are not available when streaming.", "prompt_logprobs");
  }
  return call;
}

export function withSeed(sampling: Sampling, { nextSeed }: ServerContext): ChoicesRequest["sampling"] {
  sampling.seed ??= nextSeed();
  return sampling as ChoicesRequest["sampling"];
}

export function readSalt(body: Json): string | null {
  const salt = readText(body, "cache_salt");
  if (salt === "") throw new HttpError(400, "cache_salt must not be empty.", "cache_salt");
  return salt;
}

/** vLLM's form: null for the first token, then maps of one id; ranks are null, as the sampler does not rank. */
export async function encodePromptLogprobs(
  { prompt, output: { promptLogprobs } }: Pick<Choice, "prompt" | "output">,
  tokenizer: TextTokenizer | null,
): Promise<unknown[] | null> {
  if (promptLogprobs === null) return null;
  const texts = await tokenizer?.decodeBatch(Array.from(prompt, (id) => [id]));
  return Array.from(prompt, (id, index) => {
    const score = { logprob: promptLogprobs[index], rank: null, decoded_token: texts?.[index] ?? null };
    return index === 0 ? null : { [id]: score };
  });
}

export function createdNow(): number {
  return Math.floor(Date.now() / 1000);
}
