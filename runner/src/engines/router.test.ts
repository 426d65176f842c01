import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { EngineRouter } from "./router.ts";

function withEngines(count: number) {
  const router = new EngineRouter();
  for (let index = 0; index < count; index++) router.add(`http://engine-${index}`);
  return router;
}

describe("EngineRouter", () => {
  it("places sessions on the least loaded engine and keeps them there", async () => {
    const router = withEngines(2);
    const first = await router.acquire("a", 1);
    const second = await router.acquire("b", 1);
    expect([first.engine, second.engine]).toEqual([0, 1]);
    first.release();
    expect((await router.acquire("b", 1)).engine).toBe(1);
    expect((await router.acquire("a", 1)).engine).toBe(0);
  });

  it("keeps a session on one replica of its engine, and spreads them over those", async () => {
    const router = new EngineRouter(0, 2);
    for (const url of ["http://one", "http://two"]) router.add(url);
    const places: string[] = [];
    for (const session of ["a", "b", "c", "d", "c", "a"]) {
      const { engine, replica, release } = await router.acquire(session, 1);
      places.push(`${session}: ${engine}.${replica}`);
      release();
    }
    expect(places).toEqual(["a: 0.0", "b: 1.0", "c: 0.1", "d: 1.1", "c: 0.1", "a: 0.0"]);
  });

  it("places a session on the replica with the fewest requests", async () => {
    const router = new EngineRouter(0, 2);
    router.add("http://one");
    const [first] = [await router.acquire("long", 1), await router.acquire("short", 1)];
    (await router.acquire("short", 1)).release();
    expect([first!.replica, (await router.acquire("third", 1)).replica]).toEqual([0, 0]);
    expect((await router.acquire("fourth", 1)).replica).toBe(1);
  });

  it("spreads sessions that come one after the other", async () => {
    const router = withEngines(3);
    const engines: number[] = [];
    for (const session of ["a", "b", "c"]) {
      const lease = await router.acquire(session, 1);
      engines.push(lease.engine);
      lease.release();
    }
    expect(engines).toEqual([0, 1, 2]);
  });

  it("moves a session from an engine that failed, and prefers those that did not until the next sync", async () => {
    const router = withEngines(2);
    const first = await router.acquire("a", 1);
    expect(first.engine).toBe(0);
    first.release(true);
    for (const session of ["a", "b", "c"]) expect((await router.acquire(session, 1)).engine).toBe(1);
    router.hold();
    router.release();
    expect((await router.acquire("d", 1)).engine).toBe(0);
  });

  it("sends sessions where fewer requests are, others' counted", async () => {
    const router = withEngines(2);
    router.observe(0, { running: 3, waiting: 0 });
    for (const session of ["a", "b", "c"]) expect((await router.acquire(session, 1)).engine).toBe(1);
    router.observe(0, { running: 0, waiting: 0 });
    expect((await router.acquire("d", 1)).engine).toBe(0);
  });

  it("gives an engine where requests wait no session beyond twice what it runs, but its own ones", async () => {
    const router = withEngines(2);
    const leases = [];
    for (const session of ["a", "b", "c", "d"]) leases.push(await router.acquire(session, 1));
    for (const engine of [0, 1]) router.observe(engine, { running: 1, waiting: 1 });
    const order: string[] = [];
    const later = ["e", "f", "g"].map(async (session) => {
      order.push(session + (await router.acquire(session, 5)).engine);
    });
    await router.acquire("a", 1);
    expect(order).toEqual([]);
    leases[1]!.release();
    await later[0];
    expect(order).toEqual(["e1"]);
    // Nothing waits there any more.
    router.observe(1, { running: 1, waiting: 0 });
    await Promise.all(later);
    expect(order).toEqual(["e1", "f1", "g1"]);
  });

  it("keeps the evals' engines apart", async () => {
    const router = new EngineRouter(1);
    for (const url of ["http://engine-0", "http://engine-1"]) router.add(url);
    router.version.train = 3;
    router.hold(["train"]);
    const evaluating = await router.acquire("e", 1, undefined, "eval");
    expect([evaluating.engine, evaluating.version]).toEqual([0, 0]);
    const training = router.acquire("t", 5);
    await router.drained(1, ["train"]);
    router.remove(0, "killed");
    await expect(router.acquire("e", 1, undefined, "eval")).rejects.toThrow("no engine is left");
    router.release(["train"]);
    expect([(await training).engine, (await training).version]).toEqual([1, 3]);
  });

  it("holds requests and lets them go in order", async () => {
    const router = withEngines(1);
    router.hold();
    const order: string[] = [];
    const waiting = ["a", "b", "c"].map((session) => router.acquire(session, 5).then(() => order.push(session)));
    await Promise.resolve();
    expect([order, router.waitingCount]).toEqual([[], 3]);
    router.release();
    await Promise.all(waiting);
    expect(order).toEqual(["a", "b", "c"]);
  });

  it("says what a held request waited for, and forgets it", async () => {
    const router = withEngines(1);
    router.hold();
    await expect(router.acquire("a", 0.01)).rejects.toThrow("waited 0.01 s for an engine: held by a weight sync");
    const controller = new AbortController();
    const aborted = router.acquire("b", 5, controller.signal);
    controller.abort(new Error("turn is over"));
    await expect(aborted).rejects.toThrow("turn is over");
    expect(router.waitingCount).toBe(0);
    router.release();
    await router.drained(1);
  });

  it("drains when every lease is back, and names what is out at the deadline", async () => {
    const router = withEngines(2);
    const lease = await router.acquire("a", 1);
    await expect(router.drained(0.01)).rejects.toThrow("running requests to end: 1 on engine 0");
    const drained = router.drained(5);
    lease.release();
    lease.release();
    await drained;
    expect(router.alive()[0]).toMatchObject({ active: 0, served: 1 });
  });

  it("moves a dead engine's sessions to the others and does not wait for its leases", async () => {
    const router = withEngines(2);
    const lease = await router.acquire("a", 1);
    router.hold();
    const waiting = router.acquire("a", 5);
    router.remove(0, "killed by SIGKILL");
    await router.drained(1);
    router.release();
    expect((await waiting).engine).toBe(1);
    lease.release();
    expect(router.alive()).toEqual([{ engine: 1, url: "http://engine-1", active: 1, served: 1 }]);
  });

  it("requests wait for the last engine's successor, which serves once it is admitted by its address", async () => {
    const router = withEngines(1);
    router.expected = 1;
    router.remove(0, "killed by SIGKILL");
    const waiting = router.acquire("a", 5);
    router.add("http://engine-again", 0);
    router.expected = 0;
    router.release();
    router.admit({ engine: 0, url: "http://engine-0" });
    router.admit({ engine: 0, url: "http://engine-again" }, 1); // its pool is at version 0
    expect(router.waitingCount).toBe(1);
    router.admit({ engine: 0, url: "http://engine-again" });
    expect(await waiting).toMatchObject({ engine: 0, url: "http://engine-again" });
  });

  it("fails those who wait when the last engine is gone, with the reasons", async () => {
    const router = withEngines(1);
    router.hold();
    const waiting = router.acquire("a", 5);
    router.remove(0, "killed by SIGKILL");
    const reason = "no engine is left\n    engine 0 (http://engine-0): killed by SIGKILL";
    await expect(waiting).rejects.toThrow(reason);
    await expect(router.acquire("b", 5)).rejects.toThrow(reason);
  });

  it("keeps counts, pins and order under any sequence of calls", async () => {
    const step = fc.oneof(
      { weight: 5, arbitrary: fc.record({ do: fc.constant("acquire" as const), session: fc.nat(5) }) },
      { weight: 4, arbitrary: fc.record({ do: fc.constant("release" as const), pick: fc.nat(20) }) },
      fc.constantFrom({ do: "hold" as const }, { do: "go" as const }, { do: "remove" as const }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const router = withEngines(3);
        const leases: { engine: number; release: () => void }[] = [];
        const pinned = new Map<number, number>();
        const asked: number[] = [];
        const granted: number[] = [];
        let removed = 0;
        for (const one of steps) {
          if (one.do === "acquire") {
            const ticket = asked.push(one.session);
            router.acquire(String(one.session), 60).then((lease) => {
              const before = pinned.get(one.session);
              if (before !== undefined && before >= removed) expect(lease.engine).toBe(before);
              expect(lease.engine).toBeGreaterThanOrEqual(removed);
              pinned.set(one.session, lease.engine);
              granted.push(ticket);
              leases.push(lease);
            });
          } else if (one.do === "release") leases.splice(one.pick % (leases.length + 1), 1)[0]?.release();
          else if (one.do === "hold") router.hold();
          else if (one.do === "go") router.release();
          else if (removed < 2) router.remove(removed++, "dead");
          await new Promise((resolve) => setImmediate(resolve));
          const out = leases.filter(({ engine }) => engine >= removed).length;
          expect(router.alive().reduce((sum, { active }) => sum + active, 0)).toBe(out);
          expect(granted.length + router.waitingCount).toBe(asked.length);
        }
        router.release();
        await new Promise((resolve) => setImmediate(resolve));
        expect(granted).toEqual(asked.map((_, index) => index + 1));
        for (const lease of leases) lease.release();
        await router.drained(1);
      }),
      { numRuns: 60 },
    );
  });
});
