/** Real vLLM on a CPU: a run of three steps, what its answers say of weights and versions, and a mixture served. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { ModelCalls } from "../../src/agents/model-calls.ts";
import type { RolloutContext, RolloutTask } from "../../src/agents/rollout.ts";
import { type ModelFolder, readModelFolder } from "../../src/data/model-folder.ts";
import { deadlineMs } from "../../src/deadline.ts";
import { EngineFleet } from "../../src/engines/fleet.ts";
import { fleetOf, transportOf } from "../../src/engines/from-recipe.ts";
import type { Transport } from "../../src/engines/transfer/transport.ts";
import type { GenerateResult } from "../../src/engines/types.ts";
import { syncWeights } from "../../src/engines/weight-sync.ts";
import { messageOf } from "../../src/errors.ts";
import { localNode, type Seat } from "../../src/launchers/node.ts";
import { startRanks } from "../../src/loop/parts.ts";
import { loadRecipe, type Recipe } from "../../src/recipe/index.ts";
import { foldRun } from "../../src/telemetry/fold.ts";
import { readEvents } from "../../src/telemetry/log.ts";
import type { RankGroup } from "../../src/trainer/handle.ts";
import { ncclHandshake } from "./nccl-handshake.ts";

export interface TierOptions {
  /** Resolves with the `bin` of vLLM's environment; rejects with an error whose `unmet` blames the machine. */
  install(): Promise<string>;
  recipes: string;
  /** The run's. */
  agent: string;
  /** `nccl_handshake.py`. */
  handshake: string;
  /** A pattern of the names to run. */
  only: string;
}

const runSeconds = 600;
const callSeconds = 300;
/** Nats between vLLM and the trainer in float32. */
const tolerance = 1e-3;
const prompt = [1, 2, 88, 84, 87, 89, 5, 3];
const newTokens = 96;

/** Prints a line a test; resolves with the exit code and the closing line. What it made goes with the process. */
export async function runTier({ install, only, ...files }: TierOptions): Promise<{ code: number; line: string }> {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  const home = mkdtempSync(join(tmpdir(), "molt-vllm-"));
  process.once("exit", () => rmSync(home, { recursive: true, force: true }));
  const chosen = tests.filter(([name]) => new RegExp(only).test(name));
  const places = await install().then(
    (bin) => new Places(home, bin, files),
    (error: Error & { unmet?: boolean }) => {
      counts[error.unmet ? "skipped" : "failed"] = chosen.length;
      console.log(`${error.unmet ? "not run" : "failed"}: ${messageOf(error)}`);
      return null;
    },
  );
  for (const [name, body] of places ? chosen : []) {
    const started = Date.now();
    const error: Error | undefined = await body(places!).then(
      () => undefined,
      (thrown) => thrown,
    );
    const result = error ? "failed" : "passed";
    counts[result]++;
    console.log(`${result}   ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
    if (error) console.log(error.stack);
  }
  await places?.close();
  const line = `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  return { line, code: counts.failed > 0 || chosen.length === 0 ? 1 : 0 };
}

const tests: [name: string, body: (places: Places) => Promise<void>][] = [
  ["a run of 3 steps trains on what vLLM sampled, at a ratio of 1, and leaves nothing", trains],
  ["a sync changes log-probabilities to the trainer's", syncs],
  ["an aborted request keeps its exact tokens", aborts],
  ["a paused request goes on with its exact tokens, over two versions", keeps],
  ["what a sync aborts is resumed from its tokens", resumes],
  ["a mixture of experts answers with log-probabilities", servesMixture],
  [
    "vLLM's own code joins our store and reads our NCCL id",
    ({ python, handshake }) => ncclHandshake(python, handshake),
  ],
];

/** As on a cluster: behind a gate, and with its key. */
function elsewhere(): Seat {
  return { node: { ...localNode, address: "127.0.0.2" }, env: { VLLM_API_KEY: process.env.MOLT_API_KEY! } };
}

/** A vLLM with what trains its policy. */
interface Trained {
  fleet: EngineFleet;
  ranks: RankGroup;
  transport: Transport;
  url: string;
  version: number;
}

class Places {
  readonly home: string;
  readonly python: string;
  readonly handshake: string;
  private readonly open: (() => Promise<void>)[] = [];
  private trainedOne: Promise<Trained> | null = null;

  constructor(home: string, bin: string, { recipes, agent, handshake }: Omit<TierOptions, "install" | "only">) {
    this.home = home;
    this.python = join(bin, "python");
    this.handshake = handshake;
    cpSync(recipes, join(home, "recipes"), { recursive: true });
    cpSync(agent, join(home, "recipes", "digits.ts"));
    // The quickstart's sizes, but for heads as vLLM's kernels want them.
    const dense = { head_dim: 32, max_position_embeddings: 256 };
    const experts = { num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 64, norm_topk_prob: true };
    const layers = { decoder_sparse_step: 1, mlp_only_layers: [], output_router_logits: false };
    const mixture = { architectures: ["Qwen3MoeForCausalLM"], model_type: "qwen3_moe", ...experts, ...layers };
    this.writeModel("dense", dense);
    this.writeModel("mixture", { ...dense, ...mixture });
    writeFileSync(join(home, "recipes", "vllm.yaml"), recipe(home, join(bin, "vllm")));
    // Cores and cache of the engine, on which the machine's size has no say.
    Object.assign(process.env, { VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: "nobind" });
    process.env.MOLT_API_KEY ??= "a key of this tier";
  }

  load(model: "dense" | "mixture"): { recipe: Recipe; folder: ModelFolder | null; path: string } {
    const path = join(this.home, model);
    const { recipe: loaded } = loadRecipe(join(this.home, "recipes", "vllm.yaml"), { verb: "run" });
    return { recipe: loaded, path, folder: model === "dense" ? readModelFolder(path, { weights: "none" }) : null };
  }

  async serve(model: "dense" | "mixture"): Promise<EngineFleet> {
    const loaded = this.load(model);
    const options = fleetOf(loaded.recipe, loaded.path, "random");
    const fleet = await EngineFleet.start({ ...options, seatOf: async () => elsewhere(), emit: () => {} });
    this.open.push(() => fleet.stop());
    return fleet;
  }

  /** Started once. */
  trained(): Promise<Trained> {
    this.trainedOne ??= this.startTrained();
    return this.trainedOne;
  }

  private async startTrained(): Promise<Trained> {
    const { recipe: loaded, folder } = this.load("dense");
    const fleet = await this.serve("dense");
    const ranks = await startRanks(loaded, folder!, 1);
    this.open.push(() => ranks.stop());
    const transport = transportOf(loaded, folder!, { client: fleet.client, ranks }, this.home);
    return { fleet, ranks, transport, url: fleet.urls[0]!, version: 0 };
  }

  async close(): Promise<void> {
    await Promise.all(this.open.map((end) => end()));
  }

  private writeModel(name: string, changes: object): void {
    const target = join(this.home, name);
    cpSync(join(this.home, "recipes", "quickstart", "model"), target, { recursive: true });
    const config = JSON.parse(readFileSync(join(target, "config.json"), "utf8"));
    writeFileSync(join(target, "config.json"), JSON.stringify({ ...config, ...changes }));
  }
}

const recipe = (home: string, vllm: string) => `
extends: quickstart.yaml
run: { name: vllm, dir: ${join(home, "runs")}, steps: 3, max_restarts: 0 }
actor: { model_name_or_path: ${join(home, "dense")}, init: random }
data: { max_len: 256 }
rollout: { batch_size: 8, n_samples_per_prompt: 4, max_new_tokens: 16, turn_timeout: 300, timeout: 600 }
train: { agent_path: digits.ts, max_staleness: 0 }
algo: { dynamic_filtering: off, advantage: { estimator: reinforce } }
eval: { dataset: null, steps: -1 }
ckpt: { save_steps: -1 }
engine: { kind: vllm, start_timeout: 600, sync_timeout: 300, max_num_seqs: 32 }
vllm: { command: [${vllm}, serve], enforce_eager: true }
`;

async function trains({ home }: Places): Promise<void> {
  const cli = process.env.MOLT_CLI!;
  const options = { timeout: deadlineMs(runSeconds), killSignal: "SIGKILL", cwd: home } as const;
  const ran = promisify(execFile)(process.execPath, [cli, "run", join(home, "recipes", "vllm.yaml")], options);
  await ran.catch(({ stdout, stderr, message }) => assert.fail(`${message}\n${stdout}\n${stderr}`));
  const directory = join(home, "runs", readdirSync(join(home, "runs"))[0]!);
  const events = [...readEvents(join(directory, "events.ndjson"))];
  const run = foldRun(events);
  assert.equal(run.state, "completed");
  assert.deepEqual(
    run.steps.map(({ step }) => step),
    [1, 2, 3],
  );
  const synced = events.flatMap((event) => (event.type === "sync" ? [event] : []));
  assert.equal(synced.at(-1)!.policyVersion, 3);
  assert.equal(new Set(synced.map(({ checksum }) => checksum)).size, synced.length, "weights that did not change");
  for (const { metrics } of run.steps) {
    assert.ok(metrics.tokens_trained! > 0, "tokens that were trained");
    assert.ok(metrics.logprob_gap_max! < tolerance, `a gap of ${metrics.logprob_gap_max} nats`);
  }
  const gaps = run.steps.map(({ metrics }) => metrics.logprob_gap_max!.toExponential(1));
  console.log(`         the widest gap of each step: ${gaps.join(", ")} nats`);
  assert.deepEqual(readdirSync(join(directory, "weights")), []);
  assert.ok(existsSync(join(directory, "export", "model.safetensors")));
}

/** What is sampled goes on from `prompt` under a seed. */
function request(requestId: string, version: number | null, seed = 1) {
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: newTokens, stopTokenIds: [], seed };
  return { requestId, tokenIds: prompt, version, sampling };
}

const call = { timeoutSeconds: callSeconds };

/** Of the first seed under which the end of a turn is not sampled; `half`: milliseconds of half of it. */
async function undisturbed({ fleet, url, version }: Trained): Promise<GenerateResult & { seed: number; half: number }> {
  for (let seed = 1; seed < 100; seed++) {
    const started = Date.now();
    const result = await fleet.client.generate(url, request(`undisturbed ${seed}`, version, seed), call);
    if (result.tokenIds.length === newTokens) return { ...result, seed, half: (Date.now() - started) / 2 };
  }
  return assert.fail("each of 99 seeds ends early");
}

/** The first of some results that was met midway, which is a matter of time. */
async function midway<T>(attempt: (number: number) => Promise<T>, isMet: (result: T) => boolean): Promise<T> {
  for (let number = 0; number < 8; number++) {
    const result = await attempt(number);
    if (isMet(result)) return result;
  }
  return assert.fail("no request was met midway");
}

async function sync(trained: Trained, inFlight: "wait" | "resume" | "keep" = "wait"): Promise<void> {
  const { fleet, transport } = trained;
  trained.version++;
  const seconds = { drainSeconds: callSeconds, deadlineSeconds: callSeconds };
  const log = (line: string) => assert.fail(line);
  await syncWeights({ fleet, transport, version: trained.version, inFlight, ...seconds, log });
}

/** A step towards a row, in which nothing ends. */
async function step({ ranks }: Trained): Promise<void> {
  const tokens = Int32Array.from([1, 2, 88, 84, 87, 89]);
  const { length } = tokens;
  // About what random weights give, or the correction would mask it.
  const [logprobs, one] = [new Float32Array(length).fill(-Math.log(101)), new Float32Array(length).fill(1)];
  const row = { id: "row", tokens, mask: new Uint8Array(length).fill(1), logprobs, temperatures: one };
  await ranks.all("putRows", { rows: [row] });
  await ranks.all("putAdvantages", { rows: [{ id: "row", advantages: one }] });
  const numbers = { numTokens: length - 1, learningRate: 0.01, criticLearningRate: null, klCoef: 0 };
  await ranks.all("update", { microbatches: [["row"]], ...numbers });
  await ranks.all("dropRows", { ids: ["row"] });
}

function widest(a: ArrayLike<number>, b: ArrayLike<number>): number {
  assert.equal(a.length, b.length);
  return Array.from(a, (value, index) => Math.abs(value - b[index]!)).reduce((most, gap) => Math.max(most, gap), 0);
}

/** What vLLM itself says now of tokens that it sampled. */
async function rescored({ fleet, url }: Trained, { tokenIds }: Pick<GenerateResult, "tokenIds">): Promise<number[]> {
  const scores = await fleet.client.promptLogprobs(url, Int32Array.from([...prompt, ...tokenIds]), call);
  return scores.slice(prompt.length - 1);
}

async function syncs(places: Places): Promise<void> {
  const trained = await places.trained();
  const { fleet, ranks, url } = trained;
  const tokens = Int32Array.from(prompt);
  const said: number[][] = [];
  for (let round = 0; round < 3; round++) {
    await sync(trained);
    assert.equal(await fleet.client.weightVersion(url, call), String(trained.version));
    const ones = new Float32Array(tokens.length).fill(1);
    const row = {
      id: "score",
      tokens,
      mask: new Uint8Array(tokens.length).fill(1),
      logprobs: ones,
      temperatures: ones,
    };
    await ranks.all("putRows", { rows: [row] });
    const [{ logprobs }] = (await ranks.all("logprobs", { ids: ["score"] })) as [{ logprobs: Float32Array[] }];
    said.push(await fleet.client.promptLogprobs(url, tokens, call));
    assert.ok(widest(said.at(-1)!, logprobs[0]!.slice(1)) < tolerance, "vLLM's log-probabilities are the trainer's");
    if (round < 1) await step(trained);
  }
  assert.ok(widest(said[0]!, said[1]!) > 10 * tolerance, "log-probabilities change with the weights");
  assert.ok(widest(said[1]!, said[2]!) < tolerance, "and stay with them");
}

async function aborts(places: Places): Promise<void> {
  const trained = await places.trained();
  const { fleet, url, version } = trained;
  const whole = await undisturbed(trained);
  const attempt = async (number: number) => {
    const partial = fleet.client.generate(url, request(`partial ${number}`, version, whole.seed), call);
    await sleep(whole.half);
    await fleet.client.abortRequests(url, [`partial ${number}`], call);
    return partial;
  };
  const { tokenIds, logprobs } = await midway(
    attempt,
    ({ stop, tokenIds: { length } }) => stop === "abort" && length > 0,
  );
  assert.deepEqual(tokenIds, whole.tokenIds.slice(0, tokenIds.length));
  assert.ok(widest(logprobs, whole.logprobs.slice(0, tokenIds.length)) < tolerance);
  console.log(`         aborted after ${tokenIds.length} of ${newTokens} tokens`);
}

async function keeps(places: Places): Promise<void> {
  const trained = await places.trained();
  const { fleet, url } = trained;
  const whole = await undisturbed(trained);
  const attempt = async (number: number) => {
    const kept = fleet.client.generate(url, request(`kept ${number}`, null, whole.seed), call);
    await sleep(whole.half);
    await sync(trained, "keep");
    return kept;
  };
  const { tokenIds, versions, logprobs } = await midway(attempt, (result) => new Set(result.versions).size > 1);
  assert.deepEqual(tokenIds, whole.tokenIds);
  assert.ok(widest(logprobs, whole.logprobs) < tolerance);
  const { version } = trained;
  assert.deepEqual([...new Set(versions)], [version - 1, version]);
  console.log(`         ${versions.indexOf(version)} tokens before the sync, ${newTokens} in all`);
}

async function resumes(places: Places): Promise<void> {
  const trained = await places.trained();
  const { fleet } = trained;
  // Both pools' weights are of one version again.
  await sync(trained);
  const { router, client } = fleet;
  const limits = { maxLen: 256, rolloutSeconds: callSeconds, turnSeconds: callSeconds, heldSeconds: callSeconds };
  const generate = client.generate.bind(client);
  const shared = { runId: "r", seed: 42, tokenizer: { stopTokenIds: [] as number[] }, limits, router, generate };
  const sample = async (id: string) => {
    const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens: newTokens };
    const task = { row: { id }, groupId: "g", rolloutId: `resumed ${id}`, attempt: 0, sampling };
    const context = shared as unknown as RolloutContext;
    const calls = new ModelCalls(task as unknown as RolloutTask, context, new AbortController().signal);
    const turn = { tokenIds: prompt, contextIds: prompt, parent: null, text: null, messageCount: null };
    return (await calls.sample(turn))!.sampled;
  };
  const { half } = await undisturbed(trained);
  const attempt = async (number: number) => {
    const sampling = Promise.all(Array.from({ length: 12 }, (_, id) => sample(`${number} ${id}`)));
    await sleep(half);
    await sync(trained, "resume");
    return sampling;
  };
  const isOverBoth = ({ versions }: { versions: number[] }) =>
    versions[0] === trained.version - 1 && versions.at(-1) === trained.version;
  const results = await midway(attempt, (sampled) => sampled.some(isOverBoth));
  for (const result of results) {
    const { length } = result.tokenIds;
    assert.deepEqual([result.versions.length, result.logprobs.length], [length, length]);
    assert.deepEqual(
      result.versions,
      [...result.versions].sort((a, b) => a - b),
    );
    // The weights are the same, called otherwise: every token must be what they give after all before it.
    assert.ok(widest(result.logprobs, await rescored(trained, result)) < tolerance);
  }
}

async function servesMixture(places: Places): Promise<void> {
  const { client, urls } = await places.serve("mixture");
  const { tokenIds, logprobs, versions } = await client.generate(urls[0]!, request("mixture", 0), call);
  assert.ok(tokenIds.length > 0 && tokenIds.length === logprobs.length);
  assert.deepEqual(new Set(versions), new Set([0]));
  const again = await client.promptLogprobs(urls[0]!, Int32Array.from([...prompt, ...tokenIds]), call);
  assert.ok(widest(logprobs, again.slice(prompt.length - 1)) < tolerance);
}
