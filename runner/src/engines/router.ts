import { DeadlineError, deadlineMs } from "../deadline.ts";
import { RunnerError } from "../errors.ts";
import type { EngineLease, Router } from "./types.ts";

interface Engine {
  id: number;
  url: string;
  /** Leases out. */
  active: number;
  /** Leases ever. */
  served: number;
}

interface Waiter {
  sessionId: string;
  grant: (lease: EngineLease) => void;
  fail: (error: unknown) => void;
}

/** Sessions remembered; the longest unused ones are forgotten first and would be placed anew. */
const maxPins = 65_536;

/**
 * Which engine serves a session's next request. A session is placed on the least loaded engine and stays there. While
 * held, requests wait in order and go on in that order. Only decides: request bodies never pass through.
 */
export class EngineRouter implements Router {
  private readonly engines = new Map<number, Engine>();
  private readonly pins = new Map<string, number>();
  private readonly waiting = new Set<Waiter>();
  private readonly drainWaiters = new Set<() => void>();
  private readonly losses: string[] = [];
  private held = false;
  private nextId = 0;

  /** Ids count from 0 and are never used again. */
  add(url: string): number {
    const id = this.nextId++;
    this.engines.set(id, { id, url, active: 0, served: 0 });
    return id;
  }

  /** Its sessions move to other engines at their next request; its leases no longer count. */
  remove(engine: number, reason: string): void {
    const removed = this.engines.get(engine);
    if (!removed) return;
    this.engines.delete(engine);
    this.losses.push(`engine ${engine} (${removed.url}): ${reason}`);
    for (const [session, pinned] of this.pins) if (pinned === engine) this.pins.delete(session);
    if (this.engines.size === 0) {
      for (const waiter of this.waiting) waiter.fail(this.nobodyLeft());
      this.waiting.clear();
    }
    this.wakeDrained();
  }

  acquire(sessionId: string, timeoutSeconds: number, signal?: AbortSignal): Promise<EngineLease> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.engines.size === 0) return Promise.reject(this.nobodyLeft());
    if (!this.held) return Promise.resolve(this.grant(sessionId));
    return new Promise((resolve, reject) => {
      const settle = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
        this.waiting.delete(waiter);
      };
      const fail = (error: unknown) => {
        settle();
        reject(error);
      };
      const grant = (lease: EngineLease) => {
        settle();
        resolve(lease);
      };
      const waiter: Waiter = { sessionId, grant, fail };
      const onAbort = () => fail(signal?.reason);
      const late = () => fail(new DeadlineError(`waited ${timeoutSeconds} s for an engine: held by a weight sync`));
      const timer = setTimeout(late, deadlineMs(timeoutSeconds));
      signal?.addEventListener("abort", onAbort);
      this.waiting.add(waiter);
    });
  }

  /** From now on requests wait. */
  hold(): void {
    this.held = true;
  }

  release(): void {
    this.held = false;
    for (const waiter of [...this.waiting]) waiter.grant(this.grant(waiter.sessionId));
  }

  /** Resolves when no lease is out. */
  async drained(deadlineSeconds: number): Promise<void> {
    if (this.active() === 0) return;
    await new Promise<void>((resolve, reject) => {
      const done = () => {
        clearTimeout(timer);
        this.drainWaiters.delete(done);
        resolve();
      };
      const timer = setTimeout(() => {
        this.drainWaiters.delete(done);
        const where = this.counters().flatMap(({ engine, active }) => (active ? `${active} on engine ${engine}` : []));
        reject(new DeadlineError(`waited ${deadlineSeconds} s for running requests to end: ${where.join(", ")}`));
      }, deadlineMs(deadlineSeconds));
      this.drainWaiters.add(done);
    });
  }

  alive(): { engine: number; url: string }[] {
    return [...this.engines.values()].map(({ id, url }) => ({ engine: id, url }));
  }

  counters(): { engine: number; url: string; active: number; served: number }[] {
    return [...this.engines.values()].map(({ id, url, active, served }) => ({ engine: id, url, active, served }));
  }

  /** Requests that wait for a held router. */
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
    // Set again, so that the map's order is from the longest unused.
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
    if (this.active() === 0) for (const done of [...this.drainWaiters]) done();
  }

  private nobodyLeft(): RunnerError {
    return new RunnerError(`no engine is left${this.losses.map((loss) => `\n    ${loss}`).join("")}`);
  }
}
