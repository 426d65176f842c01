import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs } from "../deadline.ts";
import { failure } from "../deferred.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { orDeath } from "../launchers/child.ts";
import { localNode, type Seat } from "../launchers/node.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { EngineClient } from "./client.ts";
import { type EnginePool, EngineRouter } from "./router.ts";
import { callSeconds, dropSeconds, type RunningEngine, type StartEngine } from "./start.ts";

export interface Engine {
  engine: number;
  url: string;
}

export type EngineEvent = Extract<RunEvent, { type: "engine" }>;

export interface FleetOptions {
  count: number;
  /** Of an engine, each time that it starts; this machine where not given. */
  seatOf?: (engine: number) => Promise<Seat>;
  /** Of them, for evals alone. */
  evalEngines?: number;
  /** Data-parallel ones within each. */
  replicas?: number;
  start: StartEngine;
  /** Of one that answers, before it is given a version: that it can do what a run needs. */
  probe?: (client: EngineClient, url: string) => Promise<void>;
  /** Whether the router hears of their load, which is a matter of time. */
  watchesLoad?: boolean;
  version: number;
  /** Of `restarts`: engines that die then stay away. */
  maxRestarts: number;
  emit: (event: EngineEvent) => void;
}

const loadEverySeconds = 1;
const stopSeconds = 5;

/** Engines, however they come to be. One that dies or is dropped is started again, under its number. */
export class EngineFleet {
  readonly router: EngineRouter;
  readonly client = new EngineClient();
  /** Told of an engine that was started again: sees that it gets the others' weights, where that takes more. */
  onRestart: (engine: Engine) => void = (engine) => this.router.admit(engine);
  private readonly lastDeath = failure();
  /** When no engine is left, and none is being started again; never resolves. */
  readonly died = this.lastDeath.promise;
  private readonly stopping = new AbortController();
  private readonly running = new Map<number, RunningEngine>();
  /** Of each engine, since all were last seen to work. */
  readonly restarts = new Map<number, number>();
  private readonly starting = new Set<Promise<void>>();
  private readonly options: FleetOptions;

  private constructor(options: FleetOptions) {
    this.options = options;
    this.router = new EngineRouter(options.evalEngines, options.replicas);
  }

  /** Every engine is healthy and names `version`; on failure none is left. */
  static async start(options: FleetOptions): Promise<EngineFleet> {
    const fleet = new EngineFleet(options);
    const starts = await Promise.allSettled(
      Array.from({ length: options.count }, (_, engine) =>
        fleet.startEngine(engine).catch((error) => {
          // The others need not wait for their deadlines.
          fleet.stopping.abort(error);
          throw error;
        }),
      ),
    );
    if (fleet.stopping.signal.aborted) {
      await fleet.stop();
      throw fleet.stopping.signal.reason;
    }
    for (const engine of starts.keys()) fleet.serve(engine, "started");
    return fleet;
  }

  get urls(): string[] {
    return this.router.alive().map(({ url }) => url);
  }

  /** When there is an engine of these pools: at once, or after the start of one that had died. */
  async ready(pools?: readonly EnginePool[]): Promise<void> {
    while (this.router.alive(pools).length === 0 && this.starting.size > 0) await Promise.race(this.starting);
  }

  /** Ends an engine that failed: it must not serve again as it is. */
  async drop(engine: number, reason: string): Promise<void> {
    if (!this.router.alive().some((one) => one.engine === engine)) return;
    const stopped = this.running.get(engine)?.stop(dropSeconds);
    this.lose(engine, "removed", new RunnerError(reason), stopped);
    await stopped;
  }

  async stop(): Promise<void> {
    this.stopping.abort(new RunnerError("the run ended"));
    for (const { engine } of this.router.alive()) this.router.remove(engine, "the run ended");
    await this.client.close();
    await Promise.all(this.starting);
    await Promise.all([...this.running.values()].map((one) => one.stop(stopSeconds)));
  }

  private async startEngine(engine: number): Promise<void> {
    const { start, seatOf, probe, version } = this.options;
    const seat = (await seatOf?.(engine)) ?? { node: localNode };
    const running = await start(engine, { client: this.client, seat, signal: this.stopping.signal });
    this.running.set(engine, running);
    const first = async () => {
      await probe?.(this.client, running.url);
      await this.client.setWeightVersion(running.url, version, { timeoutSeconds: callSeconds });
    };
    await orDeath(first(), running.died, dropSeconds);
  }

  private serve(engine: number, state: "started" | "restarted"): Engine {
    const running = this.running.get(engine)!;
    const { url, died } = running;
    this.router.add(url, state === "started" ? undefined : engine);
    this.options.emit({ type: "engine", engine, state, url });
    died.catch((error) => this.lose(engine, "died", error));
    if (this.options.watchesLoad) this.watchLoad(engine, running);
    return { engine, url };
  }

  private async watchLoad(engine: number, running: RunningEngine): Promise<void> {
    const { signal } = this.stopping;
    while (!signal.aborted && this.running.get(engine) === running) {
      const load = this.client.load(running.url, { timeoutSeconds: callSeconds, signal });
      // Silence says nothing of its load; whether it is gone is told elsewhere.
      this.router.observe(engine, await load.catch(() => ({ running: 0, waiting: 0 })));
      await sleep(deadlineMs(loadEverySeconds), undefined, { signal }).catch(() => {});
    }
  }

  /** Starts it again once it is `gone`, if it may be. */
  private lose(engine: number, state: "died" | "removed", error: unknown, gone?: Promise<void>): void {
    if (this.stopping.signal.aborted) return;
    this.running.delete(engine);
    const restarts = this.restarts.get(engine) ?? 0;
    this.restarts.set(engine, restarts + 1);
    if (restarts < this.options.maxRestarts) {
      this.router.expected++;
      const start: Promise<void> = this.startAgain(engine, gone).finally(() => this.starting.delete(start));
      this.starting.add(start);
    }
    this.router.remove(engine, messageOf(error));
    this.options.emit({ type: "engine", engine, state, message: messageOf(error) });
    if (this.urls.length + this.router.expected === 0) this.lastDeath.reject(error);
  }

  private async startAgain(engine: number, gone?: Promise<void>): Promise<void> {
    try {
      await gone;
      await this.startEngine(engine);
      this.router.expected--;
      this.onRestart(this.serve(engine, "restarted"));
    } catch (error) {
      this.router.expected--;
      this.lose(engine, "died", error, this.running.get(engine)?.stop(dropSeconds));
    }
  }
}
