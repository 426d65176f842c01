import type { ServerResponse } from "node:http";
import type { FastifyReply } from "fastify";
import { readFields, requestFields, type WireName } from "../../agents/wires/fields.ts";
import { isObject } from "../../data/config-json.ts";
import type { TextTokenizer } from "./choice-text.ts";
import { type Choice, type ChoicesRequest, type OnDelta, startChoices } from "./choices.ts";
import type { Json, ServedModel } from "./fields.ts";
import { badRequest, errorBody, HttpError, validation } from "./http-error.ts";
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

/** How a route says its choices: all at once, or as a stream. */
export interface Answering {
  whole: (choices: Choice[]) => object | Promise<object>;
  opening: () => object[];
  delta: OnDelta<object>;
  /** Null where it was not asked for. */
  usage: ((choices: Choice[]) => object) | null;
}

/** A client that goes away ends its request. */
export async function respond(
  reply: FastifyReply,
  context: ServerContext,
  request: ChoicesRequest,
  how: Answering,
): Promise<FastifyReply> {
  checkQueue(context, request.sampling.n);
  const { raw } = reply;
  const run = (onDelta?: OnDelta) => {
    const { done, abort } = startChoices(context, request, onDelta);
    raw.once("close", () => {
      if (!raw.writableFinished) abort();
    });
    return done;
  };
  // As bytes it passes by fastify's serializer, at a seventh of its cost.
  const send = (body: object) => reply.type("application/json").send(Buffer.from(JSON.stringify(body)));
  if (!request.stream) return send(await how.whole(await run()));
  reply.hijack();
  raw.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
  for (const chunk of how.opening()) sendEvent(raw, chunk);
  try {
    const choices = await run((...delta) => sendEvent(raw, how.delta(...delta)));
    if (how.usage) sendEvent(raw, how.usage(choices));
  } catch (error) {
    sendEvent(raw, errorBody(error));
  }
  sendEvent(raw, "[DONE]");
  raw.end();
  return reply;
}

function checkQueue({ scheduler, limits }: ServerContext, wanted: number): void {
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
