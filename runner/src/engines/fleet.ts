import { withDeadline } from "../deadline.ts";
import { deferred, failure } from "../deferred.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { localNode, type NodeProcess, type Seat } from "../launchers/node.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { EngineClient } from "./client.ts";
import { type EnginePool, EngineRouter } from "./router.ts";
import type { TransferGroup } from "./weight-sync.ts";

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
  model: string;
  /** Further flags of `serve`: `["--init", "random"]`. */
  args?: string[];
  version: number;
  /** Loading included. */
  startSeconds: number;
  /** Of `restarts`: engines that die then stay away. */
  maxRestarts: number;
  emit: (event: EngineEvent) => void;
}

const stopSeconds = 5;
/** A dropped engine has had its deadline. */
const dropSeconds = 1;
const callSeconds = 10;

/** Engine processes. One that dies or is dropped is started again, under its number. */
export class EngineFleet {
  readonly router: EngineRouter;
  readonly client = new EngineClient();
  transfer: TransferGroup | null = null;
  /** Told of an engine that was started again: sees that it gets the others' weights, where that takes more. */
  onRestart: (engine: Engine) => void = (engine) => this.router.admit(engine);
  private readonly lastDeath = failure();
  /** When no engine is left, and none is being started again; never resolves. */
  readonly died = this.lastDeath.promise;
  private readonly ended = failure();
  private stopping = false;
  private readonly children = new Map<number, NodeProcess>();
  /** Since all engines were last seen to work. */
  restarts = 0;
  private readonly starting = new Set<Promise<void>>();
  private readonly options: FleetOptions;

  private constructor(options: FleetOptions) {
    this.options = options;
    this.router = new EngineRouter(options.evalEngines);
  }

  /** Every engine is healthy and names `version`; on failure none is left. */
  static async start(options: FleetOptions): Promise<EngineFleet> {
    const fleet = new EngineFleet(options);
    try {
      const urls = await Promise.all(Array.from({ length: options.count }, (_, engine) => fleet.startEngine(engine)));
      for (const [engine, url] of urls.entries()) fleet.serve(engine, url, "started");
    } catch (error) {
      await fleet.stop();
      throw error;
    }
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
    const stopped = this.children.get(engine)?.stop(dropSeconds);
    this.lose(engine, "removed", new RunnerError(reason), stopped);
    await stopped;
  }

  async stop(): Promise<void> {
    this.stopping = true;
    this.ended.reject(new RunnerError("the run ended"));
    for (const { engine } of this.router.alive()) this.router.remove(engine, "the run ended");
    await this.client.close();
    const stops = [...this.children.values()].map((child) => child.stop(stopSeconds));
    await Promise.all([...stops, ...this.starting]);
    this.children.clear();
  }

  private async startEngine(engine: number): Promise<string> {
    const { model, args = [], version, startSeconds, seatOf } = this.options;
    const listening = deferred<string>();
    const name = `engine ${engine}`;
    const { node, env } = (await seatOf?.(engine)) ?? { node: localNode };
    if (this.stopping) throw new RunnerError("the run ended");
    const child = node.start({
      name,
      env,
      args: ["serve", "--model", model, "--host", node.address, "--port", "0", ...args],
      onLine: (line) => {
        if (line.startsWith('{"listening":')) listening.resolve(JSON.parse(line).listening);
      },
    });
    this.children.set(engine, child);
    const started = Promise.race([listening.promise, child.died, this.ended.promise]);
    const url = await withDeadline(started, startSeconds, `${name} to listen`);
    await this.client.health(url, { timeoutSeconds: callSeconds });
    await this.client.setWeightVersion(url, version, { timeoutSeconds: callSeconds });
    return url;
  }

  private serve(engine: number, url: string, state: "started" | "restarted"): void {
    this.router.add(url, state === "started" ? undefined : engine);
    this.options.emit({ type: "engine", engine, state, url });
    this.children.get(engine)!.died.catch((error) => this.lose(engine, "died", error));
  }

  /** Starts it again once it is `gone`, if it may be. */
  private lose(engine: number, state: "died" | "removed", error: unknown, gone?: Promise<void>): void {
    this.children.delete(engine);
    if (this.stopping) return;
    if (this.restarts++ < this.options.maxRestarts) {
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
      if (this.stopping) return;
      const url = await this.startEngine(engine);
      this.router.expected--;
      this.serve(engine, url, "restarted");
      this.onRestart({ engine, url });
    } catch (error) {
      this.router.expected--;
      this.lose(engine, "died", error, this.children.get(engine)?.stop(dropSeconds));
    }
  }
}
