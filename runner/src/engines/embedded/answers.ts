import type { ServerResponse } from "node:http";
import type { FastifyReply } from "fastify";
import { readFields, requestFields, type WireName } from "../../agents/wires/fields.ts";
import { isObject } from "../../data/config-json.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Choice, type ChoicesRequest, type OnDelta, startChoices } from "./choices.ts";
import type { Json, ServedModel } from "./fields.ts";
import { badRequest, errorBody, HttpError, toHttpError, validation } from "./http-error.ts";
import type { Scheduler } from "./scheduler.ts";

export interface ServerLimits {
  bodyBytes: number;
  /** Running and waiting. */
  sequences: number;
  headerSeconds: number;
  requestSeconds: number;
}

export interface ServerContext {
  scheduler: Scheduler;
  model: ServedModel;
  limits: ServerLimits;
  /** Rejects where the folder has none. */
  tokenizer: () => Promise<TextTokenizer>;
  nextSeed: () => number;
}

export type Answering = { whole(choices: Choice[]): string | Promise<string> } | StreamAnswering;

export interface StreamAnswering {
  whole?: undefined;
  opening: unknown[];
  delta: (...delta: Parameters<OnDelta>) => unknown;
  usage: ((choices: Choice[]) => unknown) | null;
}

/** A client that goes away ends its request. */
export async function respond(
  reply: FastifyReply,
  context: ServerContext,
  request: ChoicesRequest,
  how: Answering,
): Promise<void> {
  checkQueue(context, request);
  const { raw } = reply.hijack();
  const run = (onDelta?: OnDelta) => {
    const { done, abort } = startChoices(context.scheduler, request, onDelta);
    raw.once("close", () => {
      if (!raw.writableFinished) abort();
    });
    return done;
  };
  if (how.whole) {
    await run()
      .then((choices) => how.whole(choices))
      .then((json) => sendJson(reply, json))
      .catch((error) => sendError(reply, error));
    return;
  }
  raw.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
  for (const chunk of how.opening) sendEvent(raw, chunk);
  try {
    const choices = await run((...delta) => sendEvent(raw, how.delta(...delta)));
    if (how.usage) sendEvent(raw, how.usage(choices));
  } catch (error) {
    sendEvent(raw, errorBody(error));
  }
  sendEvent(raw, "[DONE]");
  raw.end();
}

function checkQueue({ scheduler, limits }: ServerContext, { sampling }: ChoicesRequest): void {
  const wanted = sampling.n;
  const most = limits.sequences;
  if (wanted > most) {
    throw badRequest(`the request asks for ${wanted} sequences; the engine takes at most ${most} at once`);
  }
  if (scheduler.load + wanted <= most) return;
  const state = `${scheduler.load} of at most ${most} sequences are running or waiting`;
  throw new HttpError(503, `the engine is full: ${state}; try again later`);
}

/** Bytes left unread by a client that is taken for gone. */
const mostUnread = 4 * 1024 * 1024;

function sendEvent(raw: ServerResponse, data: unknown): void {
  if (raw.destroyed) return;
  raw.write(`data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`);
  if (raw.writableLength > mostUnread) raw.destroy();
}

/** Past fastify's serializer, at a seventh of its cost. */
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

/** Throws for a field that is refused, and for another model than the one served. */
export function readBody(body: unknown, table: WireName, model: ServedModel): Json {
  if (!isObject(body)) throw validation("body", "dict_type", "Input should be a valid dictionary");
  readFields(body, requestFields[table]);
  checkModel(body.model, model);
  return body;
}

export function checkModel(name: unknown, model: ServedModel): void {
  if (name === undefined || name === null || name === model.name) return;
  throw new HttpError(404, `The model \`${String(name)}\` does not exist.`, "model");
}

export function createdNow(): number {
  return Math.floor(Date.now() / 1000);
}
