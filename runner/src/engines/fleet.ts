import { withDeadline } from "../deadline.ts";
import { deferred, failure } from "../deferred.ts";
import { messageOf } from "../errors.ts";
import { Child } from "../launchers/child.ts";
import { EngineClient } from "./client.ts";
import { EngineRouter } from "./router.ts";
import type { TransferGroup } from "./weight-sync.ts";

export interface FleetOptions {
  count: number;
  model: string;
  /** Further flags of `serve`: `["--init", "random"]`. */
  args?: string[];
  version: number;
  /** Loading included. */
  startSeconds: number;
  log: (line: string) => void;
}

const stopSeconds = 5;
/** A dropped engine has had its deadline. */
const dropSeconds = 1;
const callSeconds = 10;

export class EngineFleet {
  readonly router = new EngineRouter();
  readonly client = new EngineClient();
  transfer: TransferGroup | null = null;
  private readonly lastDeath = failure();
  /** When the last engine has died; never resolves. Earlier deaths are logged and their sessions move on. */
  readonly died = this.lastDeath.promise;
  /** By engine id, which counts from 0 in the order of starting. */
  private readonly children = new Map<number, Child>();
  private readonly log: (line: string) => void;

  private constructor(log: (line: string) => void) {
    this.log = log;
  }

  /** Every engine is healthy and names `version`; on failure none is left. */
  static async start(options: FleetOptions): Promise<EngineFleet> {
    const fleet = new EngineFleet(options.log);
    try {
      const starting = Array.from({ length: options.count }, (_, index) => fleet.startEngine(index, options));
      for (const { url, child } of await Promise.all(starting)) {
        const engine = fleet.router.add(url);
        child.died.catch((error) => fleet.onDeath(engine, error));
      }
    } catch (error) {
      await fleet.stop();
      throw error;
    }
    return fleet;
  }

  get urls(): string[] {
    return this.router.alive().map(({ url }) => url);
  }

  /** Ends an engine that failed: it must not serve again. */
  async drop(engine: number, reason: string): Promise<void> {
    this.router.remove(engine, reason);
    this.log(`engine ${engine} is dropped: ${reason}`);
    await this.children.get(engine)?.stop(dropSeconds);
    this.children.delete(engine);
  }

  async stop(): Promise<void> {
    for (const { engine } of this.router.alive()) this.router.remove(engine, "the run ended");
    await this.client.close();
    await Promise.all([...this.children.values()].map((child) => child.stop(stopSeconds)));
    this.children.clear();
  }

  private async startEngine(index: number, options: FleetOptions): Promise<{ url: string; child: Child }> {
    const { model, args = [], version, startSeconds } = options;
    const listening = deferred<string>();
    const name = `engine ${index}`;
    const child = new Child({
      name,
      args: ["serve", "--model", model, "--port", "0", ...args],
      onLine: (line) => {
        if (line.startsWith('{"listening":')) listening.resolve(JSON.parse(line).listening);
      },
    });
    this.children.set(index, child);
    const url = await withDeadline(Promise.race([listening.promise, child.died]), startSeconds, `${name} to listen`);
    await this.client.health(url, { timeoutSeconds: callSeconds });
    await this.client.setWeightVersion(url, version, { timeoutSeconds: callSeconds });
    return { url, child };
  }

  private onDeath(engine: number, error: unknown): void {
    this.router.remove(engine, messageOf(error));
    this.children.delete(engine);
    if (this.router.alive().length > 0) this.log(`${messageOf(error)}; its sessions move to other engines`);
    else this.lastDeath.reject(error);
  }
}
