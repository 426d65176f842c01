import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Model, ProcessGroup } from "molt-native";
import { afterEach, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { childrenOf, commandOf, isAlive, until } from "../../test/processes.ts";
import { readModelFolder } from "../data/model-folder.ts";
import { withDeadline } from "../deadline.ts";
import { deferred } from "../deferred.ts";
import { Child } from "../launchers/child.ts";
import { localNode } from "../launchers/node.ts";
import type { RankMethods } from "../trainer/protocol.ts";
import { type Engine, type EngineEvent, EngineFleet } from "./fleet.ts";
import { commandEngine, embeddedEngine } from "./start.ts";
import { BroadcastTransport } from "./transfer/broadcast.ts";
import type { SyncRanks } from "./transfer/transport.ts";
import type { GenerateResult } from "./types.ts";
import { joinEngine, syncWeights } from "./weight-sync.ts";

const modelFolder = fileURLToPath(new URL("./fixtures/tiny-model", import.meta.url));
const { decoder } = readModelFolder(modelFolder, { weights: "none" });

let model: Model;
beforeAll(async () => {
  model = await Model.create({ config: decoder.config, units: decoder.units, group: null, trainable: false });
});

/** Of two layers the second has experts. */
const mixtureConfig = {
  ...{ model_type: "qwen3_moe", num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 12 },
  ...{ norm_topk_prob: true, mlp_only_layers: [0] },
};

const fleets: EngineFleet[] = [];
const told: EngineEvent[] = [];
const emit = (event: EngineEvent) => {
  told.push(event);
};
afterEach(async () => {
  await Promise.all(fleets.splice(0).map((fleet) => fleet.stop()));
});

async function startFleet(
  count: number,
  args: string[] = [],
  maxRestarts = 0,
  folder = modelFolder,
): Promise<EngineFleet> {
  const start = embeddedEngine(folder, ["--init", "random", "--seed", "11", ...args], 60);
  const fleet = await EngineFleet.start({ count, start, version: 0, maxRestarts, emit });
  fleets.push(fleet);
  return fleet;
}

function generate(fleet: EngineFleet, seed: number, temperature = 1, engine = 0): Promise<GenerateResult> {
  const sampling = { temperature, topP: 1, topK: 0, maxTokens: 20, stopTokenIds: [2], seed };
  const request = {
    requestId: `r${seed}`,
    tokenIds: [1, 7, 9, 11 + (seed % 40)],
    version: fleet.router.version.train,
    sampling,
  };
  return fleet.client.generate(fleet.urls[engine]!, request, { timeoutSeconds: 60 });
}

/** Log-probabilities that the trainer's forward pass gives the tokens of a result. */
async function scoreByTrainer(seed: number, { tokenIds }: GenerateResult, temperature: number): Promise<Float32Array> {
  const prompt = [1, 7, 9, 11 + (seed % 40)];
  const tokens = Int32Array.from([...prompt, ...tokenIds]);
  const targets = Int32Array.from(tokens, (_, index) => tokens[index + 1] ?? -1).fill(-1, 0, prompt.length - 1);
  const temperatures = new Float32Array(tokens.length).fill(temperature);
  const rows = { tokens, cu: Int32Array.of(0, tokens.length), targets, temperatures };
  const { logp } = await model.forward(rows, false);
  return (await logp.data()).slice(prompt.length - 1, -1);
}

describe("molt-runner serve", () => {
  it("samples with log-probabilities that the trainer's forward pass gives", async () => {
    // case B1, the sampler's half
    const fleet = await startFleet(1);
    await model.initialize(11);
    for (const temperature of [0.5, 1, 1.5]) {
      for (const seed of [1, 2, 3]) {
        const result = await generate(fleet, seed, temperature);
        expect(result.versions).toEqual(result.tokenIds.map(() => 0));
        const scores = await scoreByTrainer(seed, result, temperature);
        expect(scores.length).toBe(result.logprobs.length);
        scores.forEach((score, index) => {
          expect(Math.abs(score - result.logprobs[index]!)).toBeLessThan(1e-4);
        });
      }
    }
  });

  it("samples in bf16 near what the trainer gives in float32", async () => {
    const fleet = await startFleet(1, ["--dtype", "bf16"]);
    await model.initialize(11);
    const result = await generate(fleet, 1);
    const gaps = [...(await scoreByTrainer(1, result, 1))].map((score, i) => Math.abs(score - result.logprobs[i]!));
    expect(Math.max(...gaps)).toBeLessThan(0.1);
    expect(Math.max(...gaps)).toBeGreaterThan(1e-4); // it is bf16 that ran
  });

  it("samples the same under a seed, whatever else is in the batch and however few pages there are", async () => {
    const roomy = await startFleet(1);
    const cramped = await startFleet(1, ["--page-size", "4", "--cache-tokens", "96"]);
    const seeds = Array.from({ length: 32 }, (_, index) => index);
    const alone: number[][] = [];
    for (const seed of seeds) alone.push((await generate(roomy, seed)).tokenIds);
    for (const fleet of [roomy, cramped]) {
      const together = await Promise.all(seeds.map((seed) => generate(fleet, seed)));
      expect(together.map(({ tokenIds }) => tokenIds)).toEqual(alone);
    }
  });

  it("tells a mixture's experts, of shared prompts too", async () => {
    const folder = mkdtempSync(join(tmpdir(), "molt-mixture-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const config = { ...JSON.parse(readFileSync(join(modelFolder, "config.json"), "utf8")), ...mixtureConfig };
    writeFileSync(join(folder, "config.json"), JSON.stringify(config));
    const mixture = readModelFolder(folder, { weights: "none" }).decoder;
    const trainer = await Model.create({ ...mixture, group: null, trainable: false });
    await trainer.initialize(11);
    const fleet = await startFleet(1, ["--page-size", "4", "--enable-return-routed-experts"], 0, folder);
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 8, stopTokenIds: [] };
    const prompt = Array.from({ length: 11 }, (_, i) => (i * 5 + 3) % 40);
    const [url] = fleet.urls as [string];
    const text = async (path: string) => (await fetch(`${url}/${path}`)).text();
    await fleet.client.pause(url, "keep", true, { timeoutSeconds: 20 });
    const results = [1, 2, 3].map((seed) => {
      const request = { requestId: `r${seed}`, tokenIds: prompt, version: 0, sampling: { ...sampling, seed } };
      return fleet.client.generate(url, request, { timeoutSeconds: 60 });
    });
    const arrived = async () => {
      while ((await text("load")) !== '{"server_load":3}') await new Promise((resolve) => setTimeout(resolve, 20));
    };
    await withDeadline(arrived(), 20, "the requests to arrive");
    await fleet.client.resume(url, { timeoutSeconds: 20 });
    for (const { tokenIds, logprobs, routes } of await Promise.all(results)) {
      const tokens = Int32Array.from([...prompt, ...tokenIds]);
      // Layer 0 is dense.
      expect([routes!.ids.length, routes!.width]).toEqual([(tokens.length - 1) * 4, 4]);
      expect(routes!.ids.every((id, at) => at % 4 > 1 || id === 0)).toBe(true);
      const ofMixture = [...routes!.ids.filter((_, at) => at % 4 > 1), -1, -1];
      const rows = {
        tokens,
        cu: Int32Array.of(0, tokens.length),
        targets: Int32Array.from(tokens, (_, at) => tokens[at + 1] ?? -1).fill(-1, 0, prompt.length - 1),
        temperatures: new Float32Array(tokens.length).fill(1),
        routes: Int16Array.from(ofMixture),
      };
      const { logp, routeMismatch } = await trainer.forward(rows, false);
      expect(routeMismatch).toEqual({ differing: 0, compared: ofMixture.length - 2 });
      (await logp.data()).slice(prompt.length - 1, -1).forEach((score, index) => {
        expect(Math.abs(score - logprobs[index]!)).toBeLessThan(1e-4);
      });
    }
    // All but the last token of the prompt, whose logits are wanted.
    expect(await text("metrics")).toMatch(new RegExp(`prefix_cache_hits_total{.*} ${2 * (prompt.length - 1)}\n`));
  });

  it("ends when its parent is killed", async () => {
    const script = `
      const args = [process.env.MOLT_CLI, "serve", "--model", process.argv[1], "--init", "random", "--port", "0"];
      const options = { stdio: ["pipe", "inherit", "inherit"], env: { ...process.env, MOLT_CHILD: "1" } };
      console.log(require("node:child_process").spawn(process.execPath, args, options).pid);`;
    const parent = spawn(process.execPath, ["-e", script, modelFolder], { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    parent.stdout.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
    await until("the engine to listen", () => output.includes("listening"));
    const pid = Number.parseInt(output, 10);
    expect(isAlive(pid)).toBe(true);
    parent.kill("SIGKILL");
    await until("the engine to end", () => !isAlive(pid));
  });

  it("says what it serves, and ends requests whose connection is closed", async () => {
    const fleet = await startFleet(1);
    const [url] = fleet.urls;
    const { data } = (await (await fetch(`${url}/v1/models`)).json()) as { data: unknown[] };
    expect(data).toMatchObject([{ id: "tiny-model", max_model_len: 48 }]);
    await fleet.client.pause(url!, "keep", true, { timeoutSeconds: 20 });
    const controller = new AbortController();
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 4, stopTokenIds: [], seed: 1 };
    const options = { timeoutSeconds: 60, signal: controller.signal };
    const left = fleet.client.generate(url!, { requestId: "left", tokenIds: [1], version: 0, sampling }, options);
    const load = async () => ((await (await fetch(`${url}/load`)).json()) as { server_load: number }).server_load;
    const loadIs = async (wanted: number) => {
      while ((await load()) !== wanted) await new Promise((resolve) => setTimeout(resolve, 20));
    };
    await withDeadline(loadIs(1), 20, "the request to arrive");
    controller.abort(new Error("the turn timed out"));
    await expect(left).rejects.toThrow("the turn timed out");
    await withDeadline(loadIs(0), 20, "the request to be gone");
  });

  it("names a port in use and the way out", async () => {
    const holder = createServer();
    await new Promise<void>((resolve) => holder.listen(0, "127.0.0.1", resolve));
    const { port } = holder.address() as { port: number };
    const args = ["serve", "--model", modelFolder, "--init", "random", "--port", String(port)];
    const child = new Child({ name: "engine 0", args });
    await expect(child.died).rejects.toThrow(/exit code 2[\s\S]*port \d+ on 127.0.0.1 is in use[\s\S]*--port 0/);
    await new Promise((resolve) => holder.close(resolve));
  });

  it("refuses to tell a dense model's experts", async () => {
    const args = ["serve", "--model", modelFolder, "--init", "random", "--port", "0", "--enable-return-routed-experts"];
    const child = new Child({ name: "engine 0", args });
    await expect(child.died).rejects.toThrow(/exit code 2[\s\S]*this model has no experts/);
  });

  it("refuses weights that are not there", async () => {
    const child = new Child({ name: "engine 0", args: ["serve", "--model", modelFolder, "--port", "0"] });
    await expect(child.died).rejects.toThrow(/exit code 2[\s\S]*holds no weights/);
  });
});

/** The trainer's side of a sync, by `model` in this process. */
function localRanks(): SyncRanks & { close(): void } {
  let group: ProcessGroup | null = null;
  const methods = {
    connectEngines: async (params: RankMethods["connectEngines"][0]) => {
      group = await ProcessGroup.create({ ...params, rank: 0, serveStore: true });
    },
    broadcastWeights: async () => ({ checksum: await model.broadcast(group) }),
    disconnectEngines: async () => group?.close(),
  };
  const all = async (method: keyof typeof methods, params: never) => [await methods[method](params)];
  return { node: localNode, all: all as SyncRanks["all"], close: () => group?.close() };
}

function syncOptions(version: number, fleet: EngineFleet, ranks: SyncRanks, deadlineSeconds = 60) {
  const { units } = decoder;
  // A group lasts as long as its transport.
  const transport =
    transports.get(ranks) ?? new BroadcastTransport({ client: fleet.client, ranks, units, deadlineSeconds });
  transports.set(ranks, transport);
  const rest = { inFlight: "wait", drainSeconds: 30, deadlineSeconds, log: () => {} } as const;
  return { fleet, transport, version, ...rest };
}

const transports = new Map<SyncRanks, BroadcastTransport>();

function syncTo(...given: Parameters<typeof syncOptions>) {
  return syncWeights(syncOptions(...given));
}

/** Process ids of engines, in the order of their start. */
function enginePids(): number[] {
  return childrenOf(process.pid).filter((pid) => commandOf(pid).includes("serve --model"));
}

async function expectWeightsOfModel(fleet: EngineFleet, engine: number, version: number): Promise<void> {
  const result = await generate(fleet, 5, 1, engine);
  expect(result.versions).toEqual(result.tokenIds.map(() => version));
  const scores = await scoreByTrainer(5, result, 1);
  scores.forEach((score, index) => {
    expect(Math.abs(score - result.logprobs[index]!)).toBeLessThan(1e-4);
  });
}

describe("EngineFleet", () => {
  it("gets the trainer's weights over c10d, verified, and samples with them", async () => {
    const fleet = await startFleet(2);
    const ranks = localRanks();
    for (const version of [1, 2]) {
      await model.initialize(12 + version);
      const { checksum, engines } = await syncTo(version, fleet, ranks);
      expect([checksum, engines]).toEqual([await model.checksum(), 2]);
      for (const engine of [0, 1]) await expectWeightsOfModel(fleet, engine, version);
    }
    ranks.close();
  });

  it("drops an engine that freezes mid-update; the other gets the version", async () => {
    // case D3, with real processes and a real group
    const fleet = await startFleet(2);
    const ranks = localRanks();
    const [frozen] = enginePids();
    const startUpdate = fleet.client.startWeightUpdate.bind(fleet.client);
    fleet.client.startWeightUpdate = async (...call) => {
      await startUpdate(...call);
      fleet.client.startWeightUpdate = startUpdate;
      process.kill(frozen!, "SIGSTOP");
    };
    await model.initialize(20);
    expect(await syncTo(1, fleet, ranks, 4)).toMatchObject({ engines: 1 });
    expect(isAlive(frozen!)).toBe(false);
    await expectWeightsOfModel(fleet, 0, 1);
    ranks.close();
  });

  it("goes on with the engines that are left, and says the last one's last lines", async () => {
    const fleet = await startFleet(2);
    const [first, second] = enginePids();
    const lease = await fleet.router.acquire("a", 5);
    process.kill(first!, "SIGKILL");
    await until("the first death to be known", () => fleet.urls.length === 1);
    expect(lease.url === fleet.urls[0] || (await fleet.router.acquire("a", 5)).url === fleet.urls[0]).toBe(true);
    process.kill(second!, "SIGKILL");
    await expect(withDeadline(fleet.died, 20, "the last death")).rejects.toThrow(
      /engine \d was killed by SIGKILL; .*last/,
    );
    await expect(fleet.router.acquire("a", 5)).rejects.toThrow("no engine is left");
  });

  it("starts an engine that died again; it serves once it has the others' weights, under its number", async () => {
    const fleet = await startFleet(2, [], 1);
    const ranks = localRanks();
    await model.initialize(30);
    await syncTo(1, fleet, ranks);
    const restarted = deferred<Engine>();
    fleet.onRestart = restarted.resolve;
    told.length = 0;
    const [first] = enginePids();
    process.kill(first!, "SIGKILL");
    const engine = await withDeadline(restarted.promise, 60, "the restart");
    const states = told.map(({ engine: number, state }) => [number, state]);
    expect(states).toEqual([
      [engine.engine, "died"],
      [engine.engine, "restarted"],
    ]);
    expect(told[0]!.message).toMatch(/^engine \d was killed by SIGKILL/);
    // Its weights are random: the other one serves alone.
    const leases = await Promise.all(["a", "b", "c"].map((session) => fleet.router.acquire(session, 5)));
    expect(leases.map((lease) => lease.engine)).not.toContain(engine.engine);
    await joinEngine(syncOptions(1, fleet, ranks), engine);
    const joined = await Promise.all(["d", "e", "f"].map((session) => fleet.router.acquire(session, 5)));
    expect(joined.map((lease) => lease.url)).toContain(engine.url);
    for (const index of [0, 1]) await expectWeightsOfModel(fleet, index, 1);
    for (const lease of [...leases, ...joined]) lease.release();
    await model.initialize(31);
    expect(await syncTo(2, fleet, ranks)).toMatchObject({ engines: 2 });
    for (const index of [0, 1]) await expectWeightsOfModel(fleet, index, 2);
    ranks.close();
  });

  it("a lone engine that dies in the middle of a sync: its successor gets the version, and requests wait", async () => {
    const fleet = await startFleet(1, [], 1);
    const ranks = localRanks();
    const startUpdate = fleet.client.startWeightUpdate.bind(fleet.client);
    fleet.client.startWeightUpdate = async (...call) => {
      fleet.client.startWeightUpdate = startUpdate;
      process.kill(enginePids()[0]!, "SIGKILL");
      await startUpdate(...call);
    };
    await model.initialize(32);
    const syncing = syncTo(1, fleet, ranks, 10);
    const waiting = fleet.router.acquire("a", 60);
    expect(await syncing).toMatchObject({ engines: 1 });
    expect((await waiting).url).toBe(fleet.urls[0]);
    await expectWeightsOfModel(fleet, 0, 1);
    ranks.close();
  });

  it("stops when one that was dropped is gone, and starts none in its place", async () => {
    const fleet = await startFleet(1, [], 1);
    process.kill(enginePids()[0]!, "SIGSTOP"); // it takes its time to end
    const dropped = fleet.drop(0, "it is silent");
    await fleet.stop();
    expect(enginePids()).toEqual([]);
    await dropped;
  });

  it("leaves no process when a start fails", async () => {
    const options = { start: embeddedEngine(modelFolder, [], 60), version: 0, maxRestarts: 1, emit };
    await expect(EngineFleet.start({ count: 2, ...options })).rejects.toThrow("holds no weights");
    expect(enginePids()).toEqual([]);
  });

  it("does not wait for ever for an engine that never listens", async () => {
    const words = ["/bin/sh", "-c", "sleep 60"];
    const options = { start: commandEngine({ words, env: {}, newer: [] }, 0.05), version: 0, maxRestarts: 1, emit };
    await expect(EngineFleet.start({ count: 1, ...options })).rejects.toThrow("waited 0.05 s for engine 0 to answer");
  });
});
