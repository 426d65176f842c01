import { withDeadline } from "../deadline.ts";
import { type Deferred, deferred } from "../deferred.ts";
import { RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";
import type { EngineLease } from "./types.ts";
import type { EngineLoad } from "./wire.ts";

/** Engines that `eval.engines` sets apart hold one version while the others go on. */
export type EnginePool = "train" | "eval";

export const everyPool: readonly EnginePool[] = ["train", "eval"];

interface Engine {
  id: number;
  url: string;
  pool: EnginePool;
  /** False until an engine that was started again has the others' version. */
  serves: boolean;
  /** Leases out. */
  active: number;
  /** Requests there that are no leases of ours, when it was last asked. */
  others: number;
  /** Requests at which it takes no further session. */
  most: number;
  /** In a row, since the last sync: whoever fails fast would seem the least loaded. */
  failures: number;
  /** Leases ever. */
  served: number;
  /** Of its data-parallel replicas: leases out, and leases ever. */
  replicas: { active: number; served: number }[];
}

interface Waiter extends Deferred<EngineLease> {
  sessionId: string;
  pool: EnginePool;
}

const waitedFor = "an engine: held by a weight sync, started again, or without room";

/** Sessions remembered; the longest unused are forgotten first. */
const maxPins = 65_536;

/**
 * Places a session on the least loaded engine of its pool, where it stays. While held, requests wait in order. Request
 * bodies never pass through.
 */
export class EngineRouter {
  private readonly engines = new Map<number, Engine>();
  private readonly pins = new Map<string, { engine: number; replica: number }>();
  private readonly waiting = new Set<Waiter>();
  private readonly drainWaiters = new Map<() => void, readonly EnginePool[]>();
  private readonly losses: string[] = [];
  /** Of a pool's weights, which only change while held; null where they change under leases. */
  readonly version: Record<EnginePool, number | null> = { train: 0, eval: 0 };
  /** What a pool's engines were last brought to. */
  readonly synced: Record<EnginePool, number> = { train: 0, eval: 0 };
  /** Engines that are being started again: where no other serves, requests wait for them. */
  expected = 0;
  private readonly held = new Set<EnginePool>();
  private nextId = 0;

  /** The first `evalEngines` are the eval's. `replicas`: data-parallel ones within each engine. */
  constructor(
    private readonly evalEngines = 0,
    private readonly replicas = 1,
  ) {}

  /** Ids count from 0. An engine started again keeps its own, and serves once it is admitted. */
  add(url: string, again?: number): number {
    const id = again ?? this.nextId++;
    const pool = id < this.evalEngines ? "eval" : "train";
    const replicas = Array.from({ length: this.replicas }, () => ({ active: 0, served: 0 }));
    const load = { active: 0, others: 0, most: Infinity, failures: 0, served: 0, replicas };
    this.engines.set(id, { id, url, pool, serves: again === undefined, ...load });
    return id;
  }

  /** Its weights are `version`, which is its pool's; it is not another that took its number meanwhile. */
  admit({ engine, url }: { engine: number; url: string }, version?: number): void {
    const admitted = this.engines.get(engine);
    if (admitted?.url !== url) return;
    const others = this.version[admitted.pool];
    if (version === undefined || others === null || others === version) admitted.serves = true;
    this.grantWaiting();
  }

  /**
   * What an engine says of its load. While requests wait there it gets new sessions up to twice what it runs: enough to
   * go on with; what is beyond waits here, for whichever engine has room first.
   */
  observe(engine: number, { running, waiting }: EngineLoad): void {
    const observed = this.engines.get(engine);
    if (!observed) return;
    observed.others = Math.max(0, running + waiting - observed.active);
    observed.most = waiting > 0 ? Math.max(1, 2 * running) : Infinity;
    this.grantWaiting();
  }

  /** Its sessions move at their next request; its leases no longer count. */
  remove(engine: number, reason: string): void {
    const url = this.engines.get(engine)?.url;
    this.engines.delete(engine);
    this.losses.push(`engine ${engine}${url ? ` (${url})` : ""}: ${reason}`);
    for (const [session, pinned] of this.pins) if (pinned.engine === engine) this.pins.delete(session);
    for (const waiter of this.waiting) {
      if (this.hasAny(waiter.pool)) continue;
      this.waiting.delete(waiter);
      waiter.reject(this.nobodyLeft());
    }
    this.wakeDrained();
  }

  /** Waits while held, or while no engine serves that is expected to; rejects at `timeoutSeconds` or on abort. */
  async acquire(
    sessionId: string,
    timeoutSeconds: number,
    signal?: AbortSignal,
    pool: EnginePool = "train",
  ): Promise<EngineLease> {
    signal?.throwIfAborted();
    if (!this.hasAny(pool)) throw this.nobodyLeft();
    if (this.grants(sessionId, pool)) return this.grant(sessionId, pool);
    const waiter = { sessionId, pool, ...deferred<EngineLease>() };
    this.waiting.add(waiter);
    const onAbort = () => {
      // At once: a lease must not go to somebody who has left.
      this.waiting.delete(waiter);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener("abort", onAbort);
    try {
      return await withDeadline(waiter.promise, timeoutSeconds, waitedFor);
    } finally {
      this.waiting.delete(waiter);
      signal?.removeEventListener("abort", onAbort);
    }
  }

  hold(pools = everyPool): void {
    for (const pool of pools) this.held.add(pool);
  }

  release(pools = everyPool): void {
    for (const pool of pools) this.held.delete(pool);
    for (const engine of this.in(pools)) engine.failures = 0;
    this.grantWaiting();
  }

  async drained(deadlineSeconds: number, pools = everyPool): Promise<void> {
    if (this.active(pools) === 0) return;
    const { promise, resolve } = deferred();
    this.drainWaiters.set(resolve, pools);
    const where = () =>
      this.alive(pools).flatMap(({ engine, active }) => (active ? `${active} on engine ${engine}` : []));
    await withDeadline(promise, deadlineSeconds, () => `running requests to end: ${where().join(", ")}`);
  }

  alive(pools = everyPool): { engine: number; url: string; active: number; served: number }[] {
    return this.in(pools).map(({ id, url, active, served }) => ({ engine: id, url, active, served }));
  }

  get waitingCount(): number {
    return this.waiting.size;
  }

  private in(pools: readonly EnginePool[]): Engine[] {
    return [...this.engines.values()].filter(({ pool }) => pools.includes(pool));
  }

  private hasAny(pool: EnginePool): boolean {
    return this.in([pool]).length + this.expected > 0;
  }

  /** Whether an engine has the pool's version. */
  serves(pool: EnginePool): boolean {
    return this.in([pool]).some(({ serves }) => serves);
  }

  private grants(sessionId: string, pool: EnginePool): boolean {
    return !this.held.has(pool) && (this.pinned(sessionId) !== undefined || this.withRoom(pool).length > 0);
  }

  /** Where the session is, whose cache it has. */
  private pinned(sessionId: string): Engine | undefined {
    return this.engines.get(this.pins.get(sessionId)?.engine ?? -1);
  }

  private withRoom(pool: EnginePool): Engine[] {
    return this.in([pool]).filter(({ serves, active, others, most }) => serves && active + others < most);
  }

  private grantWaiting(): void {
    for (const waiter of this.waiting) {
      const { sessionId, pool, resolve } = waiter;
      if (this.grants(sessionId, pool) && this.waiting.delete(waiter)) resolve(this.grant(sessionId, pool));
    }
  }

  private active(pools: readonly EnginePool[]): number {
    return this.in(pools).reduce((sum, { active }) => sum + active, 0);
  }

  private grant(sessionId: string, pool: EnginePool): EngineLease {
    const engine = this.pinned(sessionId) ?? this.leastLoaded(pool);
    const replica = this.pins.get(sessionId)?.replica ?? leastBusy(engine);
    // Set again, so that the map begins with the longest unused.
    this.pins.delete(sessionId);
    this.pins.set(sessionId, { engine: engine.id, replica });
    if (this.pins.size > maxPins) this.pins.delete(this.pins.keys().next().value!);
    const busy = [engine, engine.replicas[replica]!];
    for (const one of busy) {
      one.active += 1;
      one.served += 1;
    }
    let out = true;
    const release = (failed = false) => {
      if (!out) return;
      out = false;
      for (const one of busy) one.active -= 1;
      engine.failures = failed ? engine.failures + 1 : 0;
      if (failed) this.pins.delete(sessionId);
      this.wakeDrained();
      this.grantWaiting();
    };
    const place = { url: engine.url, engine: engine.id, ...(this.replicas > 1 && { replica }) };
    return { ...place, version: this.version[pool], synced: this.synced[pool], release };
  }

  private leastLoaded(pool: EnginePool): Engine {
    const rank = ({ failures, active, others, served }: Engine, than: Engine) =>
      failures - than.failures || active + others - than.active - than.others || served - than.served;
    return this.withRoom(pool).reduce((best, engine) => (rank(engine, best) < 0 ? engine : best));
  }

  private wakeDrained(): void {
    for (const [done, pools] of this.drainWaiters) {
      if (this.active(pools) === 0 && this.drainWaiters.delete(done)) done();
    }
  }

  private nobodyLeft(): RunnerError {
    return new RunnerError(`no engine is left${indented(this.losses)}`);
  }
}

function leastBusy({ replicas }: Engine): number {
  const order = replicas.map(({ active, served }, replica) => ({ active, served, replica }));
  return order.sort((one, other) => one.active - other.active || one.served - other.served)[0]!.replica;
}
