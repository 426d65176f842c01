import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { childrenOf, commandOf, isAlive, until } from "../../../test/processes.ts";
import { withDeadline } from "../../deadline.ts";
import { deferred } from "../../deferred.ts";
import { ChildDied } from "../../launchers/child.ts";
import { freePort } from "../../launchers/free-port.ts";
import { localNode } from "../../launchers/node.ts";
import { EngineClient } from "../client.ts";
import { type Engine, type EngineEvent, EngineFleet, type FleetOptions } from "../fleet.ts";
import { attachedEngine, commandEngine } from "../start.ts";
import { BroadcastTransport } from "../transfer/broadcast.ts";
import { Canary } from "../transfer/canary.ts";
import { DirectoryTransport } from "../transfer/directory.ts";
import type { SyncRanks } from "../transfer/transport.ts";
import { joinEngine, type SyncOptions, syncWeights } from "../weight-sync.ts";
import { probeVllm, type VllmNeeds } from "./probe.ts";

const fake = fileURLToPath(new URL("../fixtures/fake-vllm.mjs", import.meta.url));
const model = fileURLToPath(new URL("../fixtures/tiny-model", import.meta.url));

/** Of the run, where its engines are on other machines. */
const key = "a key of the run";
let folder: string;
let fleet: EngineFleet | null;
const told: EngineEvent[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "vllm-"));
  fleet = null;
  told.length = 0;
});
afterEach(async () => {
  await fleet?.stop();
  vi.unstubAllEnvs();
  rmSync(folder, { recursive: true, force: true });
});

/** A fake `vllm serve` that lacks something. */
function command(lacks = "", seconds = 30, flags: string[] = []) {
  const env = { VLLM_SERVER_DEV_MODE: "1", FAKE_VLLM: lacks, FAKE_WEIGHTS: "0.25" };
  const words = [process.execPath, fake, model, ...flags];
  return commandEngine({ words, env, newer: ["--enable-scale-out"] }, seconds);
}

const pidsOf = (words: string) => childrenOf(process.pid).filter((pid) => commandOf(pid).includes(words));

function probe(needs: Partial<VllmNeeds> = {}): FleetOptions["probe"] {
  return (client, url) => probeVllm(client, url, { nccl: false, replicas: 1, ...needs });
}

async function startFleet(count: number, more: Partial<FleetOptions> = {}): Promise<EngineFleet> {
  const emit = (event: EngineEvent) => told.push(event);
  const options = { count, start: command(), probe: probe(), version: 0, maxRestarts: 3, emit };
  fleet = await EngineFleet.start({ ...options, ...more });
  return fleet;
}

/** Of the first interface that is not for this machine alone. */
const ownAddress = Object.values(networkInterfaces())
  .flatMap((addresses) => addresses ?? [])
  .find(({ family, internal }) => family === "IPv4" && !internal)?.address;

describe("an engine of a command", () => {
  it("serves once it is healthy, under the version that it is given, and ends with the fleet", async () => {
    const { urls, client } = await startFleet(2);
    expect(new Set(urls).size).toBe(2);
    for (const url of urls) expect(await client.weightVersion(url, { timeoutSeconds: 10 })).toBe("0");
    await fleet!.stop();
    const asked = new EngineClient();
    for (const url of urls) await expect(asked.health(url, { timeoutSeconds: 10 })).rejects.toThrow("ECONNREFUSED");
    await asked.close();
  });

  it("shows its last lines when it does not answer in time", async () => {
    const late = startFleet(1, { start: command("listen", 2) });
    await expect(late).rejects.toThrow(
      /^waited 2 s for engine 0 to answer; its last lines:\n {4}loading the weights of .*tiny-model/,
    );
  });

  it("says why it ended", async () => {
    const start = commandEngine({ words: ["/bin/sh", "-c", "echo no GPU; exit 1"], env: {}, newer: [] }, 30);
    await expect(startFleet(1, { start })).rejects.toThrow(
      /engine 0 ended with exit code 1; its last lines:[\s\S]*no GPU/,
    );
    // Though the call that it died of fails first.
    await expect(startFleet(1, { start: command("life") })).rejects.toThrow(ChildDied);
    const absent = commandEngine({ words: ["no-such-program"], env: {}, newer: [] }, 30);
    await expect(startFleet(1, { start: absent })).rejects.toThrow(/exit code 127[\s\S]*no-such-program/);
  });

  it("is started without the flags that its version does not know", async () => {
    // That version serves the route of itself; the fake does not, which the probe would say.
    const { urls } = await startFleet(1, { start: command("scale-out"), probe: undefined });
    expect(urls).toHaveLength(1);
  });

  it("is reached from other machines through a gate that asks for the run's key, and not beside it", async () => {
    vi.stubEnv("MOLT_API_KEY", key);
    // Where there is no network, an address that vLLM does not listen at does as well.
    const node = { ...localNode, address: ownAddress ?? "127.0.0.2" };
    const { urls, client } = await startFleet(1, { seatOf: async () => ({ node }) });
    const [url] = urls as [string];
    expect(new URL(url).hostname).toBe(node.address);
    expect(await client.weightVersion(url, { timeoutSeconds: 10 })).toBe("0");
    for (const path of ["health", "metrics", "weight_info"]) expect((await fetch(`${url}/${path}`)).status).toBe(401);
    const [gate, engine] = ["gate --host", fake].map((words) => pidsOf(words)[0]!);
    const port = /--port (\d+)/.exec(commandOf(engine!))![1];
    expect((await fetch(`http://127.0.0.1:${port}/health`)).status).toBe(200);
    await expect(fetch(`http://${node.address}:${port}/health`)).rejects.toThrow();
    // One does not outlive the other.
    process.kill(engine!, "SIGKILL");
    await until("the gate to end", () => !isAlive(gate!));
    const restarts = () => told.filter(({ state }) => state === "restarted").length;
    await until("another engine", () => restarts() === 1);
    const [nextGate, next] = ["gate --host", fake].map((words) => pidsOf(words)[0]!);
    process.kill(nextGate!, "SIGKILL");
    // One by one: they may share a GPU.
    await until("a third", () => restarts() === 2 || (isAlive(next!) && pidsOf(fake).length > 1));
    expect([isAlive(next!), pidsOf(fake).length, pidsOf("gate --host").length]).toEqual([false, 1, 1]);
    await fleet!.stop();
    expect(told.map(({ state }) => state)).toEqual(["started", "died", "restarted", "died", "restarted"]);
    expect([...pidsOf("gate --host"), ...pidsOf(fake)]).toEqual([]);
  });

  it("ends with all that it started when the runner is killed, though it does not heed", async () => {
    const words = ["sleep 100 & echo $! $$; trap '' TERM; wait; wait"];
    const child = fileURLToPath(new URL("../../launchers/child.ts", import.meta.url));
    const entry = join(folder, "runner.mjs");
    const { build } = await import("esbuild");
    const contents = `import { Child } from ${JSON.stringify(child)};
      new Child({ name: "c", program: "/bin/sh", args: ["-c", ...${JSON.stringify(words)}], onLine: console.log });`;
    const stdin = { contents, resolveDir: folder };
    await build({ stdin, bundle: true, platform: "node", format: "esm", outfile: entry });
    const runner = spawn(process.execPath, [entry], { stdio: ["ignore", "pipe", "inherit"] });
    const started = deferred<string>();
    runner.stdout.once("data", (text) => started.resolve(String(text)));
    const pids = (await withDeadline(started.promise, 20, "the program to start")).trim().split(" ").map(Number);
    expect(pids.map(isAlive)).toEqual([true, true]);
    runner.kill("SIGKILL");
    await until("the program and what it started to end", () => !pids.some(isAlive), 20);
  });
});

describe("probeVllm", () => {
  it.each([
    ["dev-mode", "set VLLM_SERVER_DEV_MODE=1 in its environment"],
    ["scale-out", "start it with --enable-scale-out"],
    ["processed", "start it with --logprobs-mode processed_logprobs"],
  ])("says what brings %s", async (lacks, fix) => {
    const started = startFleet(1, { start: command(lacks) });
    await expect(started).rejects.toThrow(/^engine http\S+ \(vLLM 0\.32\.0\) lacks\n {4}/);
    await expect(started).rejects.toThrow(fix);
  });

  const transfers = (backend: string) => ["--weight-transfer-config", JSON.stringify({ backend })];
  it.each<[string, Partial<VllmNeeds>, string[], string]>([
    ["NCCL, without a configuration", { nccl: true }, [], '--weight-transfer-config \'{"backend": "nccl"}\''],
    ["NCCL, with another backend", { nccl: true }, transfers("ipc"), "--weight-transfer-config"],
    ["two replicas, with one", { replicas: 2 }, [], "start it with --data-parallel-size 2"],
    ["four replicas, with two", { replicas: 4 }, ["--data-parallel-size", "2"], "start it with --data-parallel-size 4"],
  ])("says what a run lacks that needs %s", async (_, needs, flags, fix) => {
    const started = startFleet(1, { start: command("", 30, flags), probe: probe(needs) });
    await expect(started).rejects.toThrow(/^engine http\S+ \(vLLM 0\.32\.0\) lacks\n {4}/);
    await expect(started).rejects.toThrow(fix);
  });

  it.each<[string, string, Partial<VllmNeeds>, string[]]>([
    ["has what NCCL needs", "", { nccl: true }, transfers("nccl")],
    ["does not tell its configuration", "info", { nccl: true }, []],
    ["has its replicas", "", { replicas: 2 }, ["--data-parallel-size", "2"]],
  ])("lets one serve that %s", async (_, lacks, needs, flags) => {
    const { urls } = await startFleet(1, { start: command(lacks, 30, flags), probe: probe(needs) });
    expect(urls).toHaveLength(1);
  });
});

/** A trainer whose weights are one number; what it writes and says may differ. */
class OneNumber {
  weights = 0;
  says: number | null = null;
  exports = 0;
  /** Broadcasts that break off. */
  broken = 0;
  readonly node = localNode;
  readonly connected: object[] = [];
  readonly sent: unknown[] = [];
  readonly all = (async (
    method: string,
    params: { directory: string; rows: { tokens: Int32Array }[]; format: unknown },
  ) => {
    if (method === "connectEngines") this.connected.push(params);
    if (method === "broadcastWeights" && this.broken-- > 0) throw new Error("a peer is gone");
    if (method === "broadcastWeights") this.sent.push(params.format);
    if (method === "exportWeights") {
      this.exports++;
      writeFileSync(join(params.directory, "model.safetensors"), String(this.weights));
    }
    if (method === "putRows") this.length = params.rows[0]!.tokens.length;
    const logprobs = [Float32Array.from({ length: this.length }, (_, t) => -((this.says ?? this.weights) + t / 100))];
    return [{ checksum: `weights ${this.weights}`, logprobs }];
  }) as unknown as SyncRanks["all"];
  private length = 0;
}

function syncer(ranks: OneNumber, started: EngineFleet) {
  const { client } = started;
  const canary = new Canary({ client, ranks, vocabSize: 50, maxLen: 40, tolerance: 1e-3, replicas: 1 });
  const transport = new DirectoryTransport({ client, ranks, canary, model, directory: join(folder, "weights") });
  const rest = { fleet: started, transport, drainSeconds: 5, deadlineSeconds: 20 };
  return (version: number): SyncOptions => ({ ...rest, version, inFlight: "wait", log: () => {} });
}

describe("DirectoryTransport", () => {
  it("brings every engine to the version, by one folder that goes again", async () => {
    const ranks = new OneNumber();
    const started = await startFleet(2);
    const options = syncer(ranks, started);
    for (const version of [1, 2]) {
      ranks.weights = version / 2;
      const done = await syncWeights(options(version));
      expect(done).toMatchObject({ engines: 2, checksum: `weights ${version / 2}` });
      for (const url of started.urls) {
        const call = { timeoutSeconds: 10 };
        expect(await started.client.weightVersion(url, call)).toBe(String(version));
        const said = await started.client.promptLogprobs(url, Int32Array.of(1, 2), call);
        expect(said[0]).toBeCloseTo(-(version / 2 + 0.01), 6);
      }
    }
    expect(ranks.exports).toBe(2);
    expect(readdirSync(join(folder, "weights"))).toEqual([]);
  });

  // case D5
  it("drops engines that did not take the weights over, though they say the version", async () => {
    const ranks = new OneNumber();
    const started = await startFleet(1, { start: command("reload"), maxRestarts: 0 });
    ranks.weights = 0.5;
    const failed = syncWeights(syncer(ranks, started)(1));
    const why = "does not have the weights of version 1: its canary is 0.5000 nats a token from the trainer's";
    await expect(failed).rejects.toThrow(why);
    expect(started.urls).toEqual([]);
    expect(existsSync(join(folder, "weights", "version-1"))).toBe(false);
  });
});

/** To engines of `command`, which have the weights 0.25 after any update. */
function broadcaster(started: EngineFleet) {
  const { client } = started;
  const ranks = new OneNumber();
  ranks.weights = 0.25;
  const canary = new Canary({ client, ranks, vocabSize: 50, maxLen: 40, tolerance: 1e-3, replicas: 1 });
  const parameter = { role: "embed", name: "embed", shape: [50, 8], init: { kind: "ones" as const }, decay: true };
  const units = [{ kind: "embedding" as const, parameters: [parameter] }];
  const vllm = { dtype: "bfloat16", canary } as const;
  const transport = new BroadcastTransport({ client, ranks, units, deadlineSeconds: 20, vllm });
  const options = { ...syncer(ranks, started)(1), transport };
  const headers = { authorization: `Bearer ${key}` };
  const told = (): Promise<unknown[][]> =>
    Promise.all(started.urls.map(async (url) => (await (await fetch(`${url}/told`, { headers })).json()) as unknown[]));
  return { ranks, transport, told, sync: (version: number) => syncWeights({ ...options, version }) };
}

describe("BroadcastTransport", () => {
  it("joins vLLM's own group as rank 0, with a place for each of the engines' workers, and sends packed", async () => {
    const started = await startFleet(2, { start: command("", 30, ["--tensor-parallel-size", "2"]) });
    const { ranks, sync, told: ask } = broadcaster(started);
    for (const version of [1, 2]) {
      expect(await sync(version)).toMatchObject({ engines: 2, checksum: "weights 0.25" });
    }
    const told = await ask();
    // One group for both versions: a trainer and four workers.
    const group = { master_address: "127.0.0.1", world_size: 5, packed: true, packed_buffer_size_bytes: 2 ** 30 };
    expect(told.map(([init]) => init)).toMatchObject([
      { ...group, rank_offset: 1 },
      { ...group, rank_offset: 3 },
    ]);
    expect(ranks.connected).toMatchObject([{ backend: "vllm", worldSize: 5 }]);
    const update = { names: ["embed"], dtype_names: ["bfloat16"], shapes: [[50, 8]] };
    for (const [, ...updates] of told) expect(updates).toEqual([update, update]);
    expect(ranks.sent).toEqual(Array(2).fill({ dtype: "bfloat16", bucketBytes: 2 ** 30 }));
  });

  it("starts engines again whose weights are half replaced, before they sample with them", async () => {
    const started = await startFleet(2, { start: command() });
    const { ranks, sync } = broadcaster(started);
    ranks.broken = 1;
    await sync(1);
    await started.ready();
    const removed = told.filter(({ state }) => state === "removed");
    expect(removed.map(({ engine, message }) => [engine, message])).toEqual([
      [0, "its weights were half replaced: a peer is gone"],
      [1, "its weights were half replaced: a peer is gone"],
    ]);
    expect(ranks.sent).toHaveLength(1);
    const lease = await started.router.acquire("a", 20);
    expect(lease.version).toBe(1);
    expect(await started.client.weightVersion(lease.url, { timeoutSeconds: 10 })).toBe("1");
  });

  it("says why where none may be started again", async () => {
    const { ranks, sync } = broadcaster(await startFleet(2, { start: command(), maxRestarts: 0 }));
    ranks.broken = 1;
    await expect(sync(1)).rejects.toThrow("a peer is gone");
  });

  it.each([
    ["", ["init", "update", "shutdown", "init", "update"]],
    ["shutdown", ["init", "update", "init", "update"]],
  ])(
    "has engines let go of a group before they join another, where they know how to (without: %j)",
    async (lacks, all) => {
      const { transport, sync, told } = broadcaster(await startFleet(1, { start: command(lacks) }));
      await sync(1);
      await transport.abandon();
      await sync(2);
      const kind = (said: object | string) => (typeof said === "string" ? said : "names" in said ? "update" : "init");
      expect((await told())[0]!.map((said) => kind(said as object | string))).toEqual(all);
    },
  );

  it.skipIf(ownAddress === undefined)("meets engines on other machines where these reach this one", async () => {
    vi.stubEnv("MOLT_API_KEY", key);
    const node = { ...localNode, address: ownAddress! };
    const started = await startFleet(1, { seatOf: async () => ({ node }) });
    const { ranks, sync, told } = broadcaster(started);
    await sync(1);
    expect(ranks.connected).toMatchObject([{ host: ownAddress }]);
    expect((await told())[0]![0]).toMatchObject({ master_address: ownAddress });
  });
});

describe("an attached engine", () => {
  it("that asks for another key is not waited for", async () => {
    const server = createServer((_, response) => response.writeHead(401).end('{"error": {"message": "no key"}}'));
    await once(server.listen(0, "127.0.0.1"), "listening");
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const refused = startFleet(1, { start: attachedEngine([url], 30) });
    await expect(refused).rejects.toThrow(`engine ${url}: GET /health: HTTP 401: no key`);
    server.close();
  });

  it("may leave and come back: it serves once it has the others' weights", async () => {
    const ports = [await freePort(), await freePort()];
    const env = { ...process.env, VLLM_SERVER_DEV_MODE: "1" };
    const serve = (port: number) =>
      spawn(process.execPath, [fake, model, "--host", "127.0.0.1", "--port", String(port)], { env, stdio: "ignore" });
    const servers = ports.map(serve);
    try {
      const urls = ports.map((port) => `http://127.0.0.1:${port}`);
      const started = await startFleet(2, { start: attachedEngine(urls, 30) });
      const ranks = new OneNumber();
      const options = syncer(ranks, started);
      ranks.weights = 1;
      await syncWeights(options(1));
      const restarted = deferred<Engine>();
      started.onRestart = restarted.resolve;
      servers[0]!.kill("SIGKILL");
      await until("its absence to be noticed", () => started.urls.length === 1, 30);
      for (const session of ["a", "b"]) expect((await started.router.acquire(session, 5)).engine).toBe(1);
      servers[0] = serve(ports[0]!);
      await joinEngine(options(1), await withDeadline(restarted.promise, 60, "its return"));
      expect(told.map(({ engine, state }) => [engine, state]).slice(2)).toEqual([
        [0, "died"],
        [0, "restarted"],
      ]);
      const leases = await Promise.all(["c", "d"].map((session) => started.router.acquire(session, 5)));
      expect(leases.map(({ engine, version }) => [engine, version])).toContainEqual([0, 1]);
      await started.stop();
      // It is somebody else's.
      expect(servers.map(({ exitCode }) => exitCode)).toEqual([null, null]);
    } finally {
      for (const server of servers) server.kill("SIGKILL");
    }
  });
});
