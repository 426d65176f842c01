import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { expectRight, expectServing, type Fault, sample, setUp } from "./fixtures/faulty-engines.ts";
import { joinEngine, syncWeights } from "./weight-sync.ts";

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
    const setup = await setUp(3, 0, 1);
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
    const setup = await setUp(1, 0, 1);
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
    const { fleet, transport } = setup;
    const options = {
      fleet,
      transport,
      version: 1,
      inFlight: "wait",
      deadlineSeconds: 10,
      log: () => {},
    } as const;
    await expect(syncWeights({ ...options, drainSeconds: 0.05 })).rejects.toThrow("1 on engine 0");
    expect(setup.engines[0]!.scheduler.isPaused).toBe(false);
    (await setup.fleet.router.acquire("b", 1)).release();
  });

  // case D8, with what every token must be by hand: the weights of its version, the draw of its position
  it.each(["resume", "keep", "wait"] as const)("requests that run while weights change: %s", async (inFlight) => {
    const setup = await setUp(2);
    const { ranks, engines, fleet } = setup;
    for (const { sampler } of engines) sampler.onStep = () => sleep(2);
    ranks.claims = "salt-1";
    await setup.sync(1, { inFlight });
    const calling = Promise.all(Array.from({ length: 12 }, (_, id) => sample(setup, id)));
    for (const version of [2, 3, 4]) {
      await sleep(8);
      ranks.salt = version;
      ranks.claims = `salt-${version}`;
      await setup.sync(version, { inFlight });
    }
    const changes = (await calling).map((reply, id) => expectRight(reply!, id, inFlight === "resume"));
    if (inFlight === "wait") expect(Math.max(...changes)).toBe(0);
    else expect(Math.max(...changes)).toBeGreaterThan(0);
    expect(fleet.router.alive()).toHaveLength(2);
    const { version, synced } = await fleet.router.acquire("later", 1);
    expect([version, synced]).toEqual([inFlight === "keep" ? null : 4, 4]);
  });

  it("an engine that joins serves at its pool's version alone", async () => {
    const { fleet, engines, transport, sync } = await setUp(2, 1);
    await sync(1);
    await sync(2, { pools: ["train"] });
    const options = { fleet, transport, inFlight: "wait", drainSeconds: 5, deadlineSeconds: 10 } as const;
    for (const { engine, url } of fleet.router.alive()) {
      fleet.router.remove(engine, "it died");
      fleet.router.add(url, engine);
      await joinEngine({ ...options, version: 2, log: () => {} }, { engine, url });
    }
    expect(engines.map(({ scheduler }) => scheduler.version)).toEqual(["2", "2"]);
    // The eval's is at version 1.
    expect([fleet.router.serves("eval"), fleet.router.serves("train")]).toEqual([false, true]);
    await sync(2, { pools: ["eval"] });
    expect(fleet.router.serves("eval")).toBe(true);
  });

  it("of one pool waits for its engine to start again, though another pool's serves", async () => {
    const { fleet, engines, sync } = await setUp(2, 1, 1);
    const { url } = fleet.router.alive(["train"])[0]!;
    engines[1]!.fault = (path) => (path === "/update_weights" ? "error" : null);
    fleet.ready = async (pools) => {
      if (fleet.router.alive(pools).length > 0) return;
      engines[1]!.fault = () => null;
      fleet.router.add(url, 1);
    };
    expect(await sync(1, { pools: ["train"] })).toMatchObject({ engines: 1 });
    expect(engines.map(({ scheduler }) => scheduler.version)).toEqual(["0", "1"]);
    expect((await fleet.router.acquire("train", 5)).version).toBe(1);
  });

  it("of the train pool leaves the eval's engine at its version, and its requests alone", async () => {
    const setup = await setUp(2, 1);
    const { fleet, ranks, engines } = setup;
    await setup.sync(1);
    const evaluating = await fleet.router.acquire("eval", 5, undefined, "eval");
    ranks.salt = 2;
    ranks.claims = "salt-2";
    expect(await setup.sync(2, { pools: ["train"], inFlight: "resume" })).toMatchObject({ engines: 1 });
    expect([evaluating.engine, evaluating.version, engines[0]!.scheduler.version]).toEqual([0, 1, "1"]);
    const training = await fleet.router.acquire("train", 5);
    expect([training.engine, training.version, engines[1]!.scheduler.version]).toEqual([1, 2, "2"]);
    evaluating.release();
    await setup.sync(2, { pools: ["eval"] });
    expect((await fleet.router.acquire("eval", 5, undefined, "eval")).version).toBe(2);
    expect(engines[0]!.scheduler.version).toBe("2");
  });
});
