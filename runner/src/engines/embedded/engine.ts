import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { Model, ProcessGroup, Sampler, setThreads } from "molt-native";
import type { Decoder } from "../../data/decoder.ts";
import { exportHeader, type ModelFolder, readModelFolder } from "../../data/model-folder.ts";
import { readSafetensorsHeader } from "../../data/safetensors.ts";
import { Tokenizer } from "../../data/tokenizer.ts";
import { type RunnerError, usageError } from "../../errors.ts";
import { namelessFile } from "../../files.ts";
import { Scheduler, type SchedulerOptions } from "./scheduler.ts";
import { buildServer, defaultLimits } from "./server.ts";
import { WeightUpdates } from "./weight-updates.ts";

export interface EngineOptions {
  model: string;
  init: "weights" | "random";
  host: string;
  /** 0 takes a free one. */
  port: number;
  /** Of random weights, and of requests that bring none. */
  seed: number;
  /** Of matmuls, attention and cache. */
  dtype: "float32" | "bf16";
  maxNumSeqs: number;
  pageSize: number;
  /** Prompt and output; null: the model's context. */
  maxModelLen: number | null;
  /** Of the key/value cache; null: what `maxNumSeqs` full requests need, at most 1 GiB. */
  cacheTokens: number | null;
  /** Of native operators; null: libtorch's choice. */
  threads: number | null;
  /** Asked of all but `/health`. */
  apiKey: string | null;
  /** Sequences running and waiting; more are refused with 503. */
  maxQueue: number;
  /** MiB. */
  maxBody: number;
  /** A mixture's answers tell the experts of each token. */
  enableReturnRoutedExperts: boolean;
}

export interface EmbeddedEngine {
  url: string;
  /** When the sampler fails; never resolves. */
  failed: Promise<never>;
  close(): Promise<void>;
}

const defaultContext = 4096;
const defaultCacheBytes = 2 ** 30;
const maxBatchedTokens = 8192;

/** Listening when this resolves. */
export async function startEngine(options: EngineOptions, engineVersion: string): Promise<EmbeddedEngine> {
  const folder = readModelFolder(options.model, { weights: options.init === "weights" ? "required" : "none" });
  if (options.threads !== null) await setThreads(options.threads);
  const limits = planCache(folder, options);
  const { config, units } = folder.decoder;
  const { pageSize, numPages } = limits;
  const dtype = options.dtype === "bf16" ? "bfloat16" : "float32";
  const routes = options.enableReturnRoutedExperts;
  if (routes && !config.moe) {
    const position = { file: join(folder.path, "config.json") };
    const fix = "leave --enable-return-routed-experts out (in a recipe: train.routing_replay)";
    throw usageError("this model has no experts whose routes could be returned", { position, fix });
  }
  const sampler = await Sampler.create({ config, units, pageSize, numPages, dtype, routes });
  await (options.init === "weights" ? sampler.load(folder.tensors) : loadRandom(sampler, folder.decoder, options.seed));
  const scheduler = new Scheduler(sampler, limits);
  const updates = new WeightUpdates(sampler, scheduler, units, (group) => ProcessGroup.create(group));
  const root = resolve(options.model);
  const model = {
    name: basename(root),
    root,
    vocabSize: config.vocabSize,
    maxModelLen: limits.maxModelLen,
    eosTokenIds: folder.eosTokenIds,
    moe: config.moe,
  };
  const app = buildServer({
    scheduler,
    updates,
    model,
    loadTokenizer: () => Tokenizer.load(root, { eosTokenIds: folder.eosTokenIds }),
    seed: options.seed,
    version: engineVersion,
    apiKey: options.apiKey,
    limits: { ...defaultLimits, sequences: options.maxQueue, bodyBytes: options.maxBody * 2 ** 20 },
  });
  const close = async () => {
    scheduler.abort();
    await app.close();
    updates.close();
  };
  try {
    await app.listen({ host: options.host, port: options.port });
  } catch (error) {
    throw listenError(error as NodeJS.ErrnoException, options);
  }
  const { port } = app.server.address() as AddressInfo;
  return { url: `http://${options.host}:${port}`, failed: scheduler.failed, close };
}

function planCache({ path, configJson, decoder }: ModelFolder, options: EngineOptions): SchedulerOptions {
  const { pageSize, maxNumSeqs, cacheTokens } = options;
  const { numLayers, numKvHeads, headDim } = decoder.config;
  const context = Number(configJson.max_position_embeddings ?? defaultContext);
  const maxModelLen = options.maxModelLen ?? context;
  if (maxModelLen > context) {
    const position = { file: join(path, "config.json") };
    const fix = `lower it to ${context} (in a recipe: data.max_len)`;
    throw usageError(`--max-model-len ${maxModelLen} is above the model's context of ${context}`, { position, fix });
  }
  const tokenBytes = 2 * numLayers * numKvHeads * headDim * (options.dtype === "bf16" ? 2 : 4);
  const pagesPerSequence = Math.ceil(maxModelLen / pageSize);
  const affordable = Math.floor(defaultCacheBytes / tokenBytes / pageSize);
  const defaultPages = Math.max(Math.min(maxNumSeqs * pagesPerSequence, affordable), pagesPerSequence);
  const numPages = cacheTokens === null ? defaultPages : Math.floor(cacheTokens / pageSize);
  if (numPages < pagesPerSequence) {
    const fix = `raise --cache-tokens to ${pagesPerSequence * pageSize}, or lower --max-model-len`;
    throw usageError(`a cache of ${cacheTokens} tokens does not hold one request of ${maxModelLen}`, { fix });
  }
  return { pageSize, numPages, maxNumSeqs, maxBatchedTokens, maxModelLen };
}

/** By way of a file: the sampler reads safetensors, and only the trainer initialises. */
async function loadRandom(sampler: Sampler, { config, units }: Decoder, seed: number): Promise<void> {
  const { handle, path: file } = await namelessFile(tmpdir());
  const model = await Model.create({ config, units, group: null, trainable: false });
  try {
    await model.initialize(seed);
    await model.save(file, exportHeader(units));
    const { entries } = readSafetensorsHeader(file);
    await sampler.load(
      entries.map(({ name, offset, shape }) => ({ name, file, offset, dtype: "F32" as const, shape })),
    );
  } finally {
    model.dispose();
    await handle.close();
  }
}

function listenError(error: NodeJS.ErrnoException, { host, port }: EngineOptions): RunnerError {
  if (error.code === "EADDRINUSE") {
    const fix = "stop what listens there, choose another --port, or take any free one with --port 0";
    return usageError(`port ${port} on ${host} is in use`, { fix });
  }
  return usageError(`cannot listen on ${host}:${port}: ${error.message}`, { fix: "check --host and --port" });
}
