import { withDeadline } from "../deadline.ts";
import { type Deferred, deferred } from "../deferred.ts";
import { RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";
import type { EngineLease } from "./types.ts";

interface Engine {
  id: number;
  url: string;
  /** Leases out. */
  active: number;
  /** Leases ever. */
  served: number;
}

interface Waiter extends Deferred<EngineLease> {
  sessionId: string;
}

/** Sessions remembered; the longest unused are forgotten first. */
const maxPins = 65_536;

/**
 * Places a session on the least loaded engine, where it stays. While held, requests wait in order. Request bodies never
 * pass through.
 */
export class EngineRouter {
  private readonly engines = new Map<number, Engine>();
  private readonly pins = new Map<string, number>();
  private readonly waiting = new Set<Waiter>();
  private readonly drainWaiters = new Set<() => void>();
  private readonly losses: string[] = [];
  private held = false;
  private nextId = 0;

  /** From 0, never used again. */
  add(url: string): number {
    const id = this.nextId++;
    this.engines.set(id, { id, url, active: 0, served: 0 });
    return id;
  }

  /** Its sessions move at their next request; its leases no longer count. */
  remove(engine: number, reason: string): void {
    const removed = this.engines.get(engine);
    if (!removed) return;
    this.engines.delete(engine);
    this.losses.push(`engine ${engine} (${removed.url}): ${reason}`);
    for (const [session, pinned] of this.pins) if (pinned === engine) this.pins.delete(session);
    if (this.engines.size === 0) {
      for (const { reject } of this.waiting) reject(this.nobodyLeft());
      this.waiting.clear();
    }
    this.wakeDrained();
  }

  /** Waits while held; rejects at `timeoutSeconds` or on abort. */
  async acquire(sessionId: string, timeoutSeconds: number, signal?: AbortSignal): Promise<EngineLease> {
    signal?.throwIfAborted();
    if (this.engines.size === 0) throw this.nobodyLeft();
    if (!this.held) return this.grant(sessionId);
    const waiter = { sessionId, ...deferred<EngineLease>() };
    this.waiting.add(waiter);
    const onAbort = () => {
      // At once: a lease must not go to somebody who has left.
      this.waiting.delete(waiter);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener("abort", onAbort);
    try {
      return await withDeadline(waiter.promise, timeoutSeconds, "an engine: held by a weight sync");
    } finally {
      this.waiting.delete(waiter);
      signal?.removeEventListener("abort", onAbort);
    }
  }

  hold(): void {
    this.held = true;
  }

  release(): void {
    this.held = false;
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const { sessionId, resolve } of waiting) resolve(this.grant(sessionId));
  }

  async drained(deadlineSeconds: number): Promise<void> {
    if (this.active() === 0) return;
    const { promise, resolve } = deferred();
    this.drainWaiters.add(resolve);
    const where = () =>
      this.counters().flatMap(({ engine, active }) => (active ? `${active} on engine ${engine}` : []));
    await withDeadline(promise, deadlineSeconds, () => `running requests to end: ${where().join(", ")}`);
  }

  alive(): { engine: number; url: string }[] {
    return [...this.engines.values()].map(({ id, url }) => ({ engine: id, url }));
  }

  counters(): { engine: number; url: string; active: number; served: number }[] {
    return [...this.engines.values()].map(({ id, url, active, served }) => ({ engine: id, url, active, served }));
  }

  get waitingCount(): number {
    return this.waiting.size;
  }

  private active(): number {
    let active = 0;
    for (const engine of this.engines.values()) active += engine.active;
    return active;
  }

  private grant(sessionId: string): EngineLease {
    const engine = this.engines.get(this.pins.get(sessionId) ?? -1) ?? this.leastLoaded();
    // Set again, so that the map begins with the longest unused.
    this.pins.delete(sessionId);
    this.pins.set(sessionId, engine.id);
    if (this.pins.size > maxPins) this.pins.delete(this.pins.keys().next().value!);
    engine.active += 1;
    engine.served += 1;
    let out = true;
    const release = () => {
      if (!out) return;
      out = false;
      engine.active -= 1;
      this.wakeDrained();
    };
    return { url: engine.url, engine: engine.id, release };
  }

  private leastLoaded(): Engine {
    const engines = [...this.engines.values()];
    return engines.reduce((best, engine) =>
      engine.active < best.active || (engine.active === best.active && engine.served < best.served) ? engine : best,
    );
  }

  private wakeDrained(): void {
    if (this.active() > 0) return;
    for (const done of this.drainWaiters) done();
    this.drainWaiters.clear();
  }

  private nobodyLeft(): RunnerError {
    return new RunnerError(`no engine is left${indented(this.losses)}`);
  }
}
