import { createHash } from "node:crypto";
import type { AddressInfo } from "node:net";
import { type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest, fastify } from "fastify";
import type { Tokenizer } from "../data/tokenizer.ts";
import { deadlineMs } from "../deadline.ts";
import { keepPartial } from "../engines/client.ts";
import { messageOf } from "../errors.ts";
import { GatewaySession, type ParseReply, type Served } from "./gateway-session.ts";
import { type ModelCalls, modelName } from "./model-calls.ts";
import { chooseFormat } from "./parsers/formats.ts";
import { proveFormat } from "./parsers/prove.ts";
import { parseReply } from "./parsers/reply.ts";
import type { Warn } from "./rollout.ts";
import { tokensWire } from "./token-wire.ts";
import { chatWire } from "./wires/chat.ts";
import { completionsWire } from "./wires/completions.ts";
import { messagesWire } from "./wires/messages.ts";
import { toJson } from "./wires/raw-json.ts";
import { responsesWire } from "./wires/responses.ts";
import { type Wire, WireError, type WireEvent, type WireRequest } from "./wires/types.ts";

/** By their path after `/v1`. */
const wires = {
  "/chat/completions": chatWire,
  "/messages": messagesWire,
  "/responses": responsesWire,
  "/completions": completionsWire,
  "/inference/v1/generate": tokensWire,
};
type Handler = (session: GatewaySession, http: FastifyRequest, reply: FastifyReply) => Promise<unknown>;

const json = "application/json; charset=utf-8";
const bodyBytes = 64 * 1024 * 1024;
/** Between two signs of life on a stream whose reply is not there yet. */
const pingSeconds = 5;
/** In which a client whose connection is gone may ask again: their second try is half a second later. */
const graceSeconds = 2;

/** Model calls over HTTP on the loopback, one server a worker. A session is a rollout; nobody guesses its id. */
export class Gateway {
  private readonly parseReply: ParseReply;
  private readonly warn: Warn;
  private readonly app: FastifyInstance;
  private readonly sessions = new Map<string, GatewaySession>();

  private constructor(parseReply: ParseReply, warn: Warn) {
    this.parseReply = parseReply;
    this.warn = warn;
    this.app = fastify({
      bodyLimit: bodyBytes,
      forceCloseConnections: true,
      // Clients differ in whether the base URL ends in /v1.
      rewriteUrl: ({ url }) => url!.replace(/^(\/s\/[^/]+)(?:\/v1)+(?=\/)/, "$1"),
    });
    this.app.setNotFoundHandler(({ method, url }) => {
      throw new WireError(404, `the gateway has no route ${method} ${url.replace(/^\/s\/[^/]+/, "")}`);
    });
    this.app.setErrorHandler((error, { url, routeOptions: { config } }, reply) => {
      const { wire = url.includes("/messages") ? messagesWire : chatWire } = config as { wire?: Wire };
      const { status, body } = errorOf(wire, error);
      // Clients need not ask again: what may pass was tried again here.
      return reply.code(status).header("x-should-retry", "false").send(body);
    });
    for (const [path, wire] of Object.entries(wires)) {
      this.route("POST", path, wire, (session, http, reply) => this.answer(wire, session, http, reply));
    }
    this.route("POST", "/messages/count_tokens", messagesWire, async (session, http) => {
      const request = messagesWire.parse(http.body);
      return { input_tokens: (await session.toIds(request)).tokenIds.length };
    });
    this.route("POST", "/tokenize", tokensWire, async (session, http) => {
      const { prompt, ...chat } = (http.body ?? {}) as Record<string, unknown>;
      const request = prompt === undefined ? chatWire.parse(chat) : completionsWire.parse({ prompt });
      const { tokenIds: tokens } = await session.toIds(request);
      return { count: tokens.length, max_model_len: session.calls.context.limits.maxLen, tokens };
    });
    this.route("GET", "/models", chatWire, async (session) => modelList(session));
  }

  /** Replies are taken apart as the model's template lays them out; that this can be done is tried first (case A7). */
  static async start(tokenizer: Tokenizer, warn: Warn): Promise<Gateway> {
    const render = (...asked: Parameters<Tokenizer["renderChat"]>) => tokenizer.renderChat(...asked);
    const { format, warning } = proveFormat(chooseFormat(tokenizer.chatTemplate), render, tokenizer.stopTexts);
    if (warning) warn("format", warning);
    const gateway = new Gateway((text, tools) => parseReply(text, format, tools), warn);
    // Thousands of rollouts may connect at once; beyond the queue a connection is reset.
    await gateway.app.listen({ host: "127.0.0.1", port: 0, backlog: 4096 });
    return gateway;
  }

  open(calls: ModelCalls): { session: GatewaySession; baseUrl: string } {
    const session = new GatewaySession(calls, this.parseReply);
    this.sessions.set(session.id, session);
    const { port } = this.app.server.address() as AddressInfo;
    return { session, baseUrl: `http://127.0.0.1:${port}/s/${session.id}/v1` };
  }

  /** Requests in work end; those that come later get an error. Nothing of the session stays. */
  close(session: GatewaySession): void {
    this.sessions.delete(session.id);
    session.end();
  }

  async stop(): Promise<void> {
    for (const session of this.sessions.values()) this.close(session);
    await this.app.close();
  }

  private route(method: "GET" | "POST", path: string, wire: Wire, handle: Handler): void {
    const handler = async (http: FastifyRequest, reply: FastifyReply) => handle(this.sessionOf(http), http, reply);
    this.app.route({ method, url: `/s/:session${path}`, config: { wire }, handler });
  }

  private async answer(wire: Wire, session: GatewaySession, http: FastifyRequest, reply: FastifyReply) {
    const request = wire.parse(http.body);
    // The trainer must know how it was sampled.
    for (const name of request.overridden) this.warn(name, `the agent sets ${name}: the recipe's sampling holds`);
    const key = createHash("sha256")
      .update(`${http.routeOptions.url} ${JSON.stringify(http.body)}`)
      .digest("base64");
    const served = session.ask(key, Number(http.headers["x-stainless-retry-count"] ?? 0) > 0, request);
    follow(session, served, reply);
    await served.prompt;
    if (request.stream) return stream(wire, request, served, reply);
    return reply.type(json).send(toJson(wire.answer(request, await served.reply)));
  }

  private sessionOf({ params }: FastifyRequest): GatewaySession {
    const session = this.sessions.get((params as { session: string }).session);
    if (!session) throw new WireError(404, "there is no such session, or its rollout has ended");
    return session;
  }
}

/** An answer that all its connections have left, and none has come back for, is of no use. */
function follow(session: GatewaySession, served: Served, { raw }: FastifyReply): void {
  const { request, turns, controller } = served;
  const leave = () => served.waiting === 0 && turns.length < request.n && controller.abort(keepPartial);
  served.waiting++;
  raw.once("finish", () => session.deliver(served));
  raw.once("close", () => {
    served.waiting--;
    if (!raw.writableFinished) setTimeout(leave, deadlineMs(graceSeconds)).unref();
  });
}

/** Headers at once, signs of life while it generates, then the wire's events. */
async function stream(wire: Wire, request: WireRequest, served: Served, reply: FastifyReply): Promise<void> {
  const { raw } = reply.hijack();
  raw.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" });
  raw.flushHeaders();
  raw.on("error", () => {}); // whoever waited is gone: `follow` sees that
  const ping = setInterval(() => raw.write(": ping\n\n"), deadlineMs(pingSeconds));
  const events = await served.reply
    .then((answer) => wire.events(request, answer))
    .catch((error): WireEvent[] => [{ event: "error", data: errorOf(wire, error).body }]);
  clearInterval(ping);
  raw.end(events.map(encodeEvent).join(""));
}

function encodeEvent({ event, data }: WireEvent): string {
  const text = typeof data === "string" ? data : toJson(data);
  return `${event === undefined ? "" : `event: ${event}\n`}data: ${text}\n\n`;
}

/** A wire's own, fastify's, or one that nobody foresaw. */
function errorOf(wire: Wire, error: unknown): { status: number; body: object } {
  const { statusCode, status = statusCode ?? 500, param = null } = error as Partial<WireError & FastifyError>;
  return { status, body: wire.error(status, messageOf(error), param) };
}

/** Read by OpenAI's clients and by Anthropic's. */
function modelList({ calls }: GatewaySession): object {
  const named = { id: modelName, object: "model", type: "model", display_name: modelName };
  const card = { ...named, created: 0, owned_by: "molt-runner", max_model_len: calls.context.limits.maxLen };
  return { object: "list", data: [card], has_more: false };
}
