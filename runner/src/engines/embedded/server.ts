import { type FastifyInstance, fastify } from "fastify";
import { deadlineMs } from "../../deadline.ts";
import { messageOf } from "../../errors.ts";
import { sameSecret } from "../../secret.ts";
import type { TransferInit, UpdateInfo } from "../client.ts";
import type { ServerContext, ServerLimits } from "./answers.ts";
import type { TextTokenizer } from "./choice-text.ts";
import type { Json, ServedModel } from "./fields.ts";
import { addGenerate } from "./generate.ts";
import { badRequest, errorBody, HttpError, statusOf } from "./http-error.ts";
import { createMetrics } from "./metrics.ts";
import { uniform } from "./philox.ts";
import { addText, addTokenize } from "./text.ts";
import type { WeightUpdates } from "./weight-updates.ts";

export interface ServerOptions extends Pick<ServerContext, "scheduler" | "limits"> {
  updates: WeightUpdates;
  model: ServedModel & { root: string };
  loadTokenizer: () => Promise<TextTokenizer>;
  seed: number;
  version: string;
  apiKey: string | null;
}

export const defaultLimits: ServerLimits = {
  bodyBytes: 64 * 1024 * 1024,
  sequences: 16384,
  headerSeconds: 20,
  requestSeconds: 120,
};

/** vLLM's protocol (reference: vllm.md, sections 1, 2, 4 and 5). Not yet listening. */
export function buildServer(options: ServerOptions): FastifyInstance {
  const { limits } = options;
  const requestTimeout = deadlineMs(limits.requestSeconds);
  const headersTimeout = Math.min(deadlineMs(limits.headerSeconds), requestTimeout);
  const app = fastify({
    bodyLimit: limits.bodyBytes,
    forceCloseConnections: true,
    requestTimeout,
    // Node compares the two when it makes the server, which is before fastify tells it ours.
    http: { requestTimeout, headersTimeout, connectionsCheckingInterval: Math.min(headersTimeout, 5000) },
  });
  // More could only be refused.
  app.server.maxConnections = limits.sequences + 256;
  app.setErrorHandler((error, _, reply) => {
    const status = statusOf(error);
    if (status === 503) reply.header("retry-after", "1");
    reply.code(status).send(errorBody(error));
  });
  app.setNotFoundHandler(async () => {
    throw new HttpError(404, "Not Found");
  });
  if (options.apiKey !== null) requireKey(app, options.apiKey);
  // Some come with an empty body, of any content type.
  app.addContentTypeParser("*", (_request, _payload, done) => done(null, undefined));
  const context = createContext(options);
  addGenerate(app, context);
  addText(app, context);
  addTokenize(app, context);
  addInformation(app, options);
  addControl(app, options);
  return app;
}

function createContext(options: ServerOptions): ServerContext {
  let unseeded = 0;
  let tokenizer: Promise<TextTokenizer> | null = null;
  return {
    ...options,
    tokenizer: () => {
      tokenizer ??= options.loadTokenizer().catch((error) => {
        throw badRequest(`this engine serves token ids only: ${messageOf(error)}`);
      });
      return tokenizer;
    },
    nextSeed: () => Math.floor(uniform(options.seed, unseeded++) * 2 ** 53),
  };
}

function requireKey(app: FastifyInstance, apiKey: string): void {
  app.addHook("onRequest", async ({ headers, routeOptions }) => {
    const given = headers.authorization ?? "";
    if (routeOptions.url === "/health" || sameSecret(given, `Bearer ${apiKey}`)) return;
    const what = given === "" ? "No API key was given" : "The API key is not this engine's";
    const as = { type: "invalid_request_error", code: "invalid_api_key" };
    throw new HttpError(401, `${what}: send it as Authorization: Bearer KEY.`, null, as);
  });
}

function addInformation(app: FastifyInstance, { scheduler, model, version }: ServerOptions): void {
  const created = Math.floor(Date.now() / 1000);
  const metrics = createMetrics(scheduler, model.name);
  app.get("/metrics", async (_, reply) => reply.type(metrics.contentType).send(await metrics.metrics()));
  app.get("/health", async () => {
    if (scheduler.failure) throw new HttpError(503, scheduler.failure.message);
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
  app.get("/is_paused", async () => ({ is_paused: scheduler.isPaused }));
  app.get("/weight_info", async () => ({ weight_version: scheduler.version }));
  const post = (path: string, handle: (body: Json, query: Record<string, string>) => object | Promise<object>) =>
    app.post(path, async ({ body, query }) => handle((body ?? {}) as Json, query as Record<string, string>));
  post("/pause", async (_, { mode = "abort", clear_cache: clearCache = "true" }) => {
    if (mode !== "abort" && mode !== "wait" && mode !== "keep") {
      throw badRequest(`mode ${JSON.stringify(mode)} is not abort, wait or keep`, "mode");
    }
    await scheduler.pause(mode, clearCache.toLowerCase() !== "false");
    return { status: "paused" };
  });
  post("/resume", () => {
    updates.resume();
    return { status: "resumed" };
  });
  post("/abort_requests", ({ request_ids: ids }) => {
    if (ids !== undefined && !Array.isArray(ids)) throw badRequest("request_ids must be a list", "request_ids");
    return { status: "aborted", aborted: scheduler.abort(ids && new Set<string>(ids)) };
  });
  post("/update_weight_version", ({ new_version: version }) => {
    if (typeof version !== "string") throw badRequest("new_version must be a string", "new_version");
    scheduler.version = version;
    return { success: true, new_version: version };
  });
  post("/init_weight_transfer_engine", async ({ init_info: info }) => {
    await updates.init(info as TransferInit);
    return { message: "Weight transfer initialized" };
  });
  post("/start_weight_update", () => {
    updates.start();
    return { message: "Weight update started" };
  });
  post("/update_weights", async ({ update_info: info = {} }) => {
    await updates.update(info as UpdateInfo);
    return { message: "Weights updated" };
  });
  post("/finish_weight_update", async ({ weight_version: version }) => {
    return { message: "Weight update finished", checksum: await updates.finish(version as string | undefined) };
  });
}
