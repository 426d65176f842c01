import type { AddressInfo } from "node:net";
import type { FastifyInstance } from "fastify";
import { afterEach, describe, expect, it } from "vitest";
import { EngineClient } from "./client.ts";
import { Scheduler } from "./embedded/scheduler.ts";
import { buildServer, defaultLimits } from "./embedded/server.ts";
import { WeightUpdates } from "./embedded/weight-updates.ts";
import { ScriptedSampler } from "./fixtures/scripted-sampler.ts";
import { EngineRouter } from "./router.ts";
import { type SyncRanks, type SyncTarget, syncWeights, type TransferGroup } from "./weight-sync.ts";

const parameter = { role: "embed", name: "embed", shape: [50, 8], init: { kind: "ones" as const }, decay: true };
const units = [{ kind: "embedding" as const, parameters: [parameter] }];
const seconds = 1;

/** A transfer group without a network: a broadcast is done when the trainer and every member take part. */
class FakeRanks {
  /** What the trainer holds, and says that it holds. */
  salt = 1;
  claims = "salt-1";
  /** Prefixes of the groups that were connected. */
  readonly groups: string[] = [];
  private meeting: { size: number; present: number; met: Promise<void>; meet: () => void } | null = null;

  readonly all = (async (method: string, params: { prefix: string; worldSize: number }) => {
    if (method === "connectEngines") {
      this.groups.push(params.prefix);
      let meet = () => {};
      const met = new Promise<void>((resolve) => {
        meet = resolve;
      });
      this.meeting = { size: params.worldSize, present: 0, met, meet };
    }
    if (method === "broadcastWeights") await this.takePart();
    return [{ checksum: this.claims }];
  }) as unknown as SyncRanks["all"];

  async takePart(): Promise<void> {
    const meeting = this.meeting!;
    meeting.present += 1;
    if (meeting.present % meeting.size === 0) meeting.meet();
    const timeout = new Promise((_, reject) => setTimeout(() => reject(new Error("Gloo timed out")), seconds * 500));
    await Promise.race([meeting.met, timeout]);
  }
}

type Fault = (path: string) => "silent" | "error" | null;

class Engine {
  readonly sampler = new ScriptedSampler();
  readonly scheduler: Scheduler;
  readonly app: FastifyInstance;
  /** Asked at each call. */
  fault: Fault = () => null;

  constructor(ranks: FakeRanks) {
    const limits = { pageSize: 4, numPages: 64, maxNumSeqs: 8, maxBatchedTokens: 64, maxModelLen: 40 };
    this.scheduler = new Scheduler(this.sampler, limits);
    this.scheduler.version = "0";
    const updates = new WeightUpdates(this.sampler, this.scheduler, units, async () => ({ close() {} }) as never);
    const model = { name: "m", root: "m", vocabSize: 50, maxModelLen: 40, eosTokenIds: [] };
    const loadTokenizer = () => Promise.reject(new Error("no tokenizer"));
    const rest = { loadTokenizer, seed: 0, version: "0", apiKey: null, limits: defaultLimits };
    this.app = buildServer({ scheduler: this.scheduler, updates, model, ...rest });
    this.sampler.onReceive = async () => {
      await ranks.takePart();
      this.sampler.salt = ranks.salt;
    };
    this.app.addHook("onRequest", async (request, reply) => {
      const fault = this.fault(request.url.split("?")[0]!);
      if (fault === "silent") await new Promise(() => {});
      if (fault === "error") return reply.code(500).send({ error: { message: "injected" } });
    });
  }
}

interface Setup {
  ranks: FakeRanks;
  engines: Engine[];
  fleet: SyncTarget & { dropped: number[] };
  sync(version: number): ReturnType<typeof syncWeights>;
}

const open: { engines: Engine[]; client: EngineClient }[] = [];

afterEach(async () => {
  for (const { engines, client } of open.splice(0)) {
    await client.close();
    await Promise.all(engines.map(({ app }) => app.close()));
  }
});

async function setUp(count: number): Promise<Setup> {
  const ranks = new FakeRanks();
  const engines = Array.from({ length: count }, () => new Engine(ranks));
  const router = new EngineRouter();
  for (const { app } of engines) {
    await app.listen({ host: "127.0.0.1", port: 0 });
    router.add(`http://127.0.0.1:${(app.server.address() as AddressInfo).port}`);
  }
  const dropped: number[] = [];
  const client = new EngineClient();
  open.push({ engines, client });
  const drop = async (engine: number, reason: string) => {
    dropped.push(engine);
    router.remove(engine, reason);
  };
  const fleet = { router, client, transfer: null as TransferGroup | null, drop, dropped };
  const sync = (version: number) =>
    syncWeights({
      fleet,
      ranks,
      units,
      version,
      inFlight: "wait",
      drainSeconds: 5,
      deadlineSeconds: seconds,
      log: () => {},
    });
  return { ranks, engines, fleet, sync };
}

/** Every engine that still serves is at one version, says so, and samples with those weights. */
async function expectServing({ engines, fleet }: Setup, version: number, salt: number) {
  for (const { engine } of fleet.router.alive()) {
    const { scheduler, sampler } = engines[engine]!;
    expect([scheduler.isPaused, scheduler.version, sampler.salt]).toEqual([false, String(version), salt]);
  }
  const lease = await fleet.router.acquire("anyone", 5);
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 2, stopTokenIds: [], seed: 1 };
  const request = { requestId: "after", tokenIds: [1], sampling };
  const result = await fleet.client.generate(lease.url, request, { timeoutSeconds: 5 });
  lease.release();
  expect(result.versions).toEqual([version, version]);
}

describe("syncWeights", () => {
  it("brings every engine to the version, verified, over one group that stays", async () => {
    const setup = await setUp(3);
    expect(await setup.sync(1)).toMatchObject({ checksum: "salt-1", engines: 3 });
    await expectServing(setup, 1, 1);
    setup.ranks.salt = 2;
    setup.ranks.claims = "salt-2";
    await setup.sync(2);
    await expectServing(setup, 2, 2);
    expect(setup.ranks.groups.length).toBe(1);
  });

  it("holds requests until running ones have ended", async () => {
    const setup = await setUp(1);
    const lease = await setup.fleet.router.acquire("a", 5);
    let synced = false;
    const syncing = setup.sync(1).then(() => {
      synced = true;
    });
    const held = setup.fleet.router.acquire("b", 5);
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect([synced, setup.engines[0]!.scheduler.version]).toEqual([false, "0"]);
    lease.release();
    await syncing;
    (await held).release();
    await expectServing(setup, 1, 1);
  });

  // case D3
  const faults: [string, Fault][] = [
    ["is silent from the start", () => "silent"],
    ["answers 500 mid-update", (path) => (path === "/update_weights" ? "error" : null)],
    ["is silent mid-update", (path) => (path === "/update_weights" ? "silent" : null)],
    ["answers 500 when it should join", (path) => (path === "/init_weight_transfer_engine" ? "error" : null)],
    ["is silent at the end", (path) => (path === "/finish_weight_update" ? "silent" : null)],
  ];
  it.each(faults)("drops the one engine of three that %s; the others go on", async (_, fault) => {
    const setup = await setUp(3);
    setup.engines[1]!.fault = fault;
    expect(await setup.sync(1)).toMatchObject({ engines: 2 });
    expect(setup.fleet.dropped).toEqual([1]);
    await expectServing(setup, 1, 1);
    setup.ranks.salt = 2;
    setup.ranks.claims = "salt-2";
    await setup.sync(2);
    await expectServing(setup, 2, 2);
  });

  it("keeps an engine that fails once", async () => {
    const setup = await setUp(2);
    let calls = 0;
    setup.engines[0]!.fault = (path) => (path === "/update_weights" && calls++ === 0 ? "error" : null);
    expect(await setup.sync(1)).toMatchObject({ engines: 2 });
    expect(setup.fleet.dropped).toEqual([]);
    await expectServing(setup, 1, 1);
  });

  // case D5
  it("is an error when the trainer's weights are not what arrived", async () => {
    const setup = await setUp(2);
    setup.ranks.claims = "salt-2";
    await expect(setup.sync(2)).rejects.toThrow("holds weights with checksum salt-1, the trainer sent salt-2");
    expect(setup.fleet.router.alive()).toEqual([]);
    await expect(setup.fleet.router.acquire("a", 5)).rejects.toThrow("no engine is left");
  });

  it("is an error when nothing was delivered or a version is not taken over", async () => {
    const setup = await setUp(1);
    setup.engines[0]!.sampler.receive = async () => {};
    await expect(setup.sync(1)).rejects.toThrow("Gloo timed out");
    const other = await setUp(1);
    const { scheduler } = other.engines[0]!;
    Object.defineProperty(scheduler, "version", { get: () => "0", set: () => {} });
    await expect(other.sync(1)).rejects.toThrow("says version 0 after version 1 was sent");
  });

  it("fails by its deadline, and names what runs, when requests do not end", async () => {
    const setup = await setUp(1);
    await setup.fleet.router.acquire("stuck", 5);
    const { fleet, ranks } = setup;
    const options = {
      fleet,
      ranks,
      units,
      version: 1,
      inFlight: "wait",
      deadlineSeconds: seconds,
      log: () => {},
    } as const;
    await expect(syncWeights({ ...options, drainSeconds: 0.05 })).rejects.toThrow("1 on engine 0");
    expect(setup.engines[0]!.scheduler.isPaused).toBe(false);
    (await setup.fleet.router.acquire("b", 1)).release();
  });
});
