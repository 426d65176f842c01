import { randomBytes } from "node:crypto";
import { type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest, fastify } from "fastify";
import { messageOf } from "../../errors.ts";
import type { TransferInit, UpdateInfo } from "../client.ts";
import { encodeAnswer, HttpError, parseRequest, type ServedModel } from "./generate.ts";
import { uniform } from "./philox.ts";
import type { PauseMode, Scheduler } from "./scheduler.ts";
import type { WeightUpdates } from "./weight-updates.ts";

export interface ServerOptions {
  scheduler: Scheduler;
  updates: WeightUpdates;
  model: ServedModel & { root: string };
  /** Seeds requests that bring none. */
  seed: number;
  version: string;
}

const maxBodyBytes = 64 * 1024 * 1024;

/** vLLM's protocol (reference: vllm.md, sections 1 and 4) over the embedded scheduler. Not yet listening. */
export function buildServer(options: ServerOptions): FastifyInstance {
  const app = fastify({ bodyLimit: maxBodyBytes, forceCloseConnections: true });
  app.setErrorHandler((error: FastifyError, _, reply) => sendError(reply, error));
  app.setNotFoundHandler((_, reply) => sendError(reply, new HttpError(404, "Not Found")));
  // Routes without a body are called with an empty one and any content type.
  app.addContentTypeParser("*", (_request, _payload, done) => done(null, undefined));
  addGenerate(app, options);
  addInformation(app, options);
  addControl(app, options);
  addWeightRoutes(app, options);
  return app;
}

function addGenerate(app: FastifyInstance, { scheduler, model, seed: serverSeed }: ServerOptions): void {
  let unseeded = 0;
  app.post("/inference/v1/generate", (request, reply) => {
    const parsed = parseRequest(request.body, model);
    const header = request.headers["x-request-id"];
    const id = `generate-tokens-${header ?? parsed.requestId ?? randomBytes(8).toString("hex")}`;
    const seed = parsed.params.seed ?? Math.floor(uniform(serverSeed, unseeded++) * 2 ** 53);
    const { output, abort } = scheduler.submit(id, { ...parsed.params, seed });
    reply.raw.once("close", () => {
      if (!reply.raw.writableFinished) abort();
    });
    output.then(
      (result) => sendJson(reply, encodeAnswer(id, parsed, result, model)),
      (error) => sendError(reply, new HttpError(500, messageOf(error))),
    );
  });
}

function addInformation(app: FastifyInstance, { scheduler, model, version }: ServerOptions): void {
  const created = Math.floor(Date.now() / 1000);
  let failure: string | null = null;
  scheduler.failed.catch((error) => {
    failure = messageOf(error);
  });
  app.get("/health", (_, reply) => {
    if (failure !== null) sendError(reply, new HttpError(503, failure));
    else reply.send();
  });
  app.get("/version", async () => ({ version }));
  app.get("/load", async () => ({ server_load: scheduler.load }));
  app.get("/get_world_size", async () => ({ world_size: 1 }));
  app.get("/v1/models", async () => ({ object: "list", data: [modelCard(model, created)] }));
}

function modelCard({ name, root, maxModelLen }: ServerOptions["model"], created: number) {
  const permission = {
    id: `modelperm-${name}`,
    object: "model_permission",
    created,
    allow_create_engine: false,
    allow_sampling: true,
    allow_logprobs: true,
    allow_search_indices: false,
    allow_view: true,
    allow_fine_tuning: false,
    organization: "*",
    group: null,
    is_blocking: false,
  };
  const card = { id: name, object: "model", created, owned_by: "molt-runner", root, parent: null };
  return { ...card, max_model_len: maxModelLen, permission: [permission] };
}

function addControl(app: FastifyInstance, { scheduler, updates }: ServerOptions): void {
  app.post("/pause", async (request) => {
    const { mode = "abort", clear_cache: clearCache = "true" } = request.query as Record<string, string>;
    if (mode !== "abort" && mode !== "wait" && mode !== "keep") {
      throw new HttpError(400, `mode ${JSON.stringify(mode)} is not abort, wait or keep`, "mode");
    }
    await scheduler.pause(mode satisfies PauseMode, clearCache.toLowerCase() !== "false");
    return { status: "paused" };
  });
  app.post("/resume", async () => {
    updates.resume();
    return { status: "resumed" };
  });
  app.get("/is_paused", async () => ({ is_paused: scheduler.isPaused }));
  app.post("/abort_requests", async (request) => {
    const ids = bodyOf<{ request_ids?: string[] }>(request).request_ids;
    return { status: "aborted", aborted: scheduler.abort(ids ? new Set(ids) : undefined) };
  });
}

function addWeightRoutes(app: FastifyInstance, { scheduler, updates }: ServerOptions): void {
  app.get("/weight_info", async () => ({ weight_version: scheduler.version }));
  app.post("/update_weight_version", async (request) => {
    const version = bodyOf<{ new_version: unknown }>(request).new_version;
    if (typeof version !== "string") throw new HttpError(400, "new_version must be a string", "new_version");
    scheduler.version = version;
    return { success: true, new_version: version };
  });
  app.post("/init_weight_transfer_engine", async (request) => {
    await updates.init(bodyOf<{ init_info: TransferInit }>(request).init_info);
    return { message: "Weight transfer initialized" };
  });
  app.post("/start_weight_update", async () => {
    updates.start();
    return { message: "Weight update started" };
  });
  app.post("/update_weights", async (request) => {
    await updates.update(bodyOf<{ update_info: UpdateInfo }>(request).update_info ?? {});
    return { message: "Weights updated" };
  });
  app.post("/finish_weight_update", async (request) => {
    const checksum = await updates.finish(bodyOf<{ weight_version?: string }>(request).weight_version);
    return { message: "Weight update finished", checksum };
  });
}

function bodyOf<T>(request: FastifyRequest): Partial<T> & T {
  return (request.body ?? {}) as T;
}

/** Past fastify's serializer: a seventh of its cost, on the one route that counts. */
function sendJson(reply: FastifyReply, json: string): void {
  reply.hijack();
  reply.raw.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(json) });
  reply.raw.end(json);
}

const errorTypes: Record<number, string> = { 400: "BadRequestError", 404: "NotFoundError" };

/** vLLM's error body; its request validation says "Bad Request" where the rest says "BadRequestError". */
function sendError(reply: FastifyReply, error: FastifyError | HttpError): void {
  if (reply.raw.destroyed) return;
  const status = error instanceof HttpError ? error.status : (error.statusCode ?? 500);
  const param = error instanceof HttpError ? error.param : null;
  const isValidation = status === 400 && error.message.startsWith("1 validation error");
  const type = isValidation ? "Bad Request" : (errorTypes[status] ?? "InternalServerError");
  reply.code(status).send({ error: { message: error.message, type, param, code: status } });
}
