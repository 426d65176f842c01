import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { FastifyInstance } from "fastify";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Tokenizer } from "../../data/tokenizer.ts";
import { ScriptedSampler } from "../fixtures/scripted-sampler.ts";
import { Scheduler } from "./scheduler.ts";
import { buildServer, defaultLimits } from "./server.ts";
import { WeightUpdates } from "./weight-updates.ts";

const recorded = JSON.parse(readFileSync(new URL("../fixtures/vllm-0.32.json", import.meta.url), "utf8"));

const units = [
  {
    kind: "embedding" as const,
    parameters: [
      { role: "embed", name: "embed", shape: [50, 8], init: { kind: "ones" as const }, decay: true },
      { role: "norm", name: "norm", shape: [8], init: { kind: "ones" as const }, decay: false },
    ],
  },
];
const update = { names: ["embed", "norm"], dtype_names: ["float32", "float32"], shapes: [[50, 8], [8]] };
const init = { master_address: "127.0.0.1", master_port: 1, rank_offset: 1, world_size: 2, backend: "c10d" };
const initInfo = { ...init, prefix: "p", timeout_seconds: 5 };

const tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../data/fixtures/bytelevel", import.meta.url)));
let options: Parameters<typeof buildServer>[0];
let app: FastifyInstance;
let sampler: ScriptedSampler;
let scheduler: Scheduler;
let connects: unknown[];

beforeEach(() => {
  sampler = new ScriptedSampler({ vocabSize: 512, pageSize: 16, numPages: 128 });
  const limits = { pageSize: 16, numPages: 128, maxNumSeqs: 8, maxBatchedTokens: 8192, maxModelLen: 2048 };
  scheduler = new Scheduler(sampler, limits);
  connects = [];
  const connect = async (options: unknown) => {
    connects.push(options);
    return { close() {} } as never;
  };
  const updates = new WeightUpdates(sampler, scheduler, units, connect);
  const model = { name: "m", root: "/models/tiny-qwen3", vocabSize: 512, maxModelLen: 2048, eosTokenIds: [2] };
  const rest = { seed: 0, version: "0.1.0", apiKey: null, limits: defaultLimits };
  options = { scheduler, updates, model, loadTokenizer: async () => tokenizer, ...rest };
  app = buildServer(options);
});
afterEach(() => app.close());

async function call(method: string, url: string, body?: unknown) {
  const response = await app.inject({ method: method as "GET", url, payload: body as object });
  return { status: response.statusCode, body: response.body === "" ? "" : response.json() };
}

const generate = (body: unknown) => call("POST", "/inference/v1/generate", body);

/** The type of every leaf; null fits anything, since the sampler does not rank. */
function shapeOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.length === 0 ? [] : [shapeOf(value[0])];
  if (typeof value !== "object" || value === null) return value === null ? "null" : typeof value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, key === "rank" ? "rank" : shapeOf(item)]));
}

it("starts with deadlines stretched for a debugger, past Node's own default of 300 s", async () => {
  vi.stubEnv("MOLT_DEADLINE_SCALE", "100");
  const patient = buildServer(options);
  vi.unstubAllEnvs();
  expect([patient.server.headersTimeout, patient.server.requestTimeout]).toEqual([2_000_000, 12_000_000]);
  await patient.close();
});

describe("against the recorded answers of vLLM 0.32", () => {
  // Bodies that are the same to the letter. The others differ in values only.
  it.each([
    "generate_bad_empty",
    "generate_bad_vocab",
    "generate_too_long",
    "health",
    "load",
    "pause",
    "is_paused2",
    "resume",
    "abort_all",
    "update_weight_version",
    "weight_info",
    "world_size",
  ])("answers %s the same", async (name) => {
    const { request, status, response } = recorded[name];
    expect(await call(request.method, request.path, request.body ?? undefined)).toEqual({ status, body: response });
  });

  it.each(["generate", "generate_after_version", "models", "version"])("answers %s in the same shape", async (name) => {
    const { request, status, response } = recorded[name];
    const answer = await call(request.method, request.path, request.body ?? undefined);
    expect(answer.status).toBe(status);
    expect(shapeOf(answer.body)).toEqual(shapeOf(response));
    // Keys in the same order: the answer is built by hand.
    expect(JSON.stringify(shapeOf(answer.body))).toBe(JSON.stringify(shapeOf(response)));
  });

  it("answers a refused transfer with the recorded shape of error", async () => {
    const { request, response } = recorded.init_nccl;
    const answer = await call(request.method, request.path, request.body);
    expect(answer.status).toBe(400);
    expect(shapeOf({ ...answer.body.error, param: null })).toEqual(shapeOf(response.error));
  });
});

describe("/inference/v1/generate", () => {
  const body = { token_ids: [1, 2, 3], request_id: "r", sampling_params: { max_tokens: 4, seed: 7, logprobs: 0 } };
  const withSampling = (more: object) => ({ ...body, sampling_params: { ...body.sampling_params, ...more } });

  it("counts tokens, and names the request as vLLM does", async () => {
    const { body: answer } = await generate(body);
    expect(answer.request_id).toBe("generate-tokens-r");
    expect(answer.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 });
    const { token_ids, logprobs } = answer.choices[0];
    expect(logprobs.content.map(({ token_id }: { token_id: number }) => token_id)).toEqual(token_ids);
  });

  it("samples the same under the same seed, and otherwise without one", async () => {
    const ids = async (request: unknown) => (await generate(request)).body.choices[0].token_ids;
    expect(await ids(body)).toEqual(await ids({ ...body, request_id: "other" }));
    expect(await ids(withSampling({ seed: null }))).not.toEqual(await ids(withSampling({ seed: null })));
  });

  it("says which token stopped it; the model's own end has no reason", async () => {
    const [first, second] = (await generate(body)).body.choices[0].token_ids;
    const stopped = (await generate(withSampling({ stop_token_ids: [second] }))).body.choices[0];
    expect(stopped).toMatchObject({ finish_reason: "stop", stop_reason: second, token_ids: [first, second] });
  });

  it.each([
    [{ sampling_params: { logprobs: 2 } }, "sampling_params.logprobs"],
    [{ sampling_params: { prompt_logprobs: 2 } }, "sampling_params.prompt_logprobs"],
    [{ sampling_params: { presence_penalty: 0.1 } }, "sampling_params.presence_penalty"],
    [{ sampling_params: { repetition_penalty: 1.1 } }, "sampling_params.repetition_penalty"],
    [{ sampling_params: { structured_outputs: { json: {} } } }, "sampling_params.structured_outputs"],
    [{ sampling_params: { min_p: 0.1 } }, "sampling_params.min_p"],
    [{ sampling_params: { typical_p: 0.1 } }, "sampling_params.typical_p"],
    [{ output_mode: "audio" }, "output_mode"],
    [{ features: { mm_hashes: {} } }, "features"],
  ])("refuses %j by name", async (overrides, name) => {
    const { status, body: answer } = await generate({ ...body, ...overrides });
    expect([status, answer.error.param]).toEqual([400, name]);
    expect(answer.error.message).toContain(`${name} is not supported: `);
    expect(sampler.steps).toBe(0);
  });

  it.each([
    [{ temperature: -1 }, "temperature must be non-negative, got -1."],
    [{ top_p: 0 }, "top_p must be in (0, 1], got 0."],
    [{ max_tokens: 0 }, "max_tokens must be at least 1, got 0."],
    [{ seed: 1.5 }, "seed must be"],
    [{ stop_token_ids: ["a"] }, "stop_token_ids must be a list of integers."],
  ])("refuses sampling_params %j", async (sampling, message) => {
    const answer = await generate(withSampling(sampling));
    expect([answer.status, answer.body.error.message]).toEqual([400, expect.stringContaining(message)]);
  });

  it.each([
    [{ token_ids: [1, -1] }, "body.token_ids.1"],
    [{ token_ids: [1, "2"] }, "body.token_ids.1"],
    [{ token_ids: undefined }, "body.token_ids"],
    [{ sampling_params: undefined }, "body.sampling_params"],
  ])("refuses %j with its place", async (overrides, param) => {
    const answer = await generate({ ...body, ...overrides });
    expect([answer.status, answer.body.error.param]).toEqual([400, param]);
  });

  it("refuses to abort what is no list of requests", async () => {
    const { status, body: answer } = await call("POST", "/abort_requests", { request_ids: 5 });
    expect([status, answer.error.message]).toEqual([400, "request_ids must be a list"]);
  });

  it("refuses a body that is no JSON, and an unknown path", async () => {
    const headers = { "content-type": "application/json" };
    const broken = await app.inject({ method: "POST", url: "/inference/v1/generate", payload: "{", headers });
    expect([broken.statusCode, broken.json().error.code]).toEqual([400, 400]);
    expect((await call("GET", "/nowhere")).status).toBe(404);
  });

  it("answers 500, and health 503, once the sampler is broken", async () => {
    sampler.onStep = () => {
      throw new Error("broken core");
    };
    const answer = await generate(body);
    expect([answer.status, answer.body.error.message]).toEqual([500, "the sampler failed: broken core"]);
    expect((await call("GET", "/health")).status).toBe(503);
  });
});

describe("weight updates", () => {
  const version = async () => (await call("GET", "/weight_info")).body.weight_version;
  const begin = async () => {
    await call("POST", "/init_weight_transfer_engine", { init_info: initInfo });
    await call("POST", "/pause?mode=keep");
    await call("POST", "/start_weight_update");
  };

  it("takes a whole update, and then its version", async () => {
    await begin();
    expect(connects).toEqual([expect.objectContaining({ rank: 1, worldSize: 2, prefix: "p", serveStore: false })]);
    sampler.onReceive = () => {
      sampler.salt = 9;
    };
    expect((await call("POST", "/update_weights", { update_info: update })).status).toBe(200);
    const finished = await call("POST", "/finish_weight_update", { weight_version: "4" });
    expect(finished.body.checksum).toBe("salt-9");
    expect((await call("POST", "/resume")).status).toBe(200);
    expect(await version()).toBe("4");
  });

  it("refuses to start unless paused", async () => {
    expect((await call("POST", "/start_weight_update")).status).toBe(400);
  });

  // case D5
  it.each([
    ["renames a tensor", { ...update, names: ["embed", "norms"] }, "not a tensor of this model: norms"],
    [
      "leaves one out",
      { names: ["embed"], dtype_names: ["float32"], shapes: [[50, 8]] },
      "1 tensors are not named: norm",
    ],
    ["has another shape", { ...update, shapes: [[8, 50], [8]] }, "embed is [50,8], not [8,50]"],
    ["has another dtype", { ...update, dtype_names: ["float32", "bfloat16"] }, "norm is float32, not bfloat16"],
    ["has lists of two lengths", { ...update, shapes: [[8]] }, "lists of one length"],
    ["is empty", undefined, "lists of one length"],
  ])("that %s changes nothing: the old version serves on", async (_, info, message) => {
    await begin();
    const answer = await call("POST", "/update_weights", { update_info: info });
    expect([answer.status, answer.body.error.message]).toEqual([400, expect.stringContaining(message)]);
    expect((await call("POST", "/finish_weight_update", { weight_version: "4" })).status).toBe(400);
    expect((await call("POST", "/resume")).status).toBe(200);
    expect(await version()).toBe("default");
  });

  it("that delivers nothing is an error", async () => {
    await begin();
    const answer = await call("POST", "/finish_weight_update", { weight_version: "4" });
    expect([answer.status, await version()]).toEqual([400, "default"]);
  });

  it("that breaks off midway leaves an engine that refuses to serve until a whole one has come", async () => {
    await begin();
    sampler.onReceive = () => {
      throw new Error("connection reset by peer");
    };
    const broken = await call("POST", "/update_weights", { update_info: update });
    expect([broken.status, broken.body.error.message]).toEqual([500, "connection reset by peer"]);
    expect((await call("POST", "/resume")).status).toBe(409);
    expect(await version()).toBe("default");
    sampler.onReceive = () => {};
    await call("POST", "/start_weight_update");
    await call("POST", "/update_weights", { update_info: update });
    await call("POST", "/finish_weight_update", { weight_version: "4" });
    expect((await call("POST", "/resume")).status).toBe(200);
  });
});
