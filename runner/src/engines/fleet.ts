import { withDeadline } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { Child } from "../launchers/child.ts";
import { EngineClient } from "./client.ts";
import { EngineRouter } from "./router.ts";
import type { SyncTarget, TransferGroup } from "./weight-sync.ts";

export interface FleetOptions {
  count: number;
  /** A Hugging Face model folder. */
  model: string;
  /** Further flags of `molt-runner serve`: `["--init", "random"]`. */
  args?: string[];
  env?: Record<string, string>;
  /** Version of the weights that the engines start with. */
  version: number;
  /** For start: loading included. */
  startSeconds: number;
  log: (line: string) => void;
}

const stopSeconds = 5;
/** A dropped engine has had its deadline. */
const dropSeconds = 1;
const callSeconds = 10;

/** The embedded engines of a run: their processes, the router over them, the client to them. */
export class EngineFleet implements SyncTarget {
  readonly router = new EngineRouter();
  readonly client = new EngineClient();
  transfer: TransferGroup | null = null;
  /** Rejects, never resolves, when the last engine has died; earlier deaths are logged and their sessions move on. */
  readonly died: Promise<never>;
  /** By engine id, which the router counts in the order of their start. */
  private readonly children = new Map<number, Child>();
  private readonly log: (line: string) => void;
  private onDied: (error: unknown) => void = () => {};

  private constructor(log: (line: string) => void) {
    this.log = log;
    this.died = new Promise((_, reject) => {
      this.onDied = reject;
    });
    this.died.catch(() => {});
  }

  /** Resolves when every engine is healthy and names `version`; otherwise none is left. */
  static async start(options: FleetOptions): Promise<EngineFleet> {
    const fleet = new EngineFleet(options.log);
    try {
      const starting = Array.from({ length: options.count }, (_, index) => fleet.startEngine(index, options));
      for (const url of await Promise.all(starting)) fleet.serve(url);
    } catch (error) {
      await fleet.stop();
      throw error;
    }
    return fleet;
  }

  get urls(): string[] {
    return this.router.alive().map(({ url }) => url);
  }

  /** Takes an engine out and ends its process: it failed, and must not serve again. */
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

  private async startEngine(index: number, options: FleetOptions): Promise<string> {
    const { model, args = [], env, version, startSeconds } = options;
    let onListening = (_: string) => {};
    const listening = new Promise<string>((resolve) => {
      onListening = resolve;
    });
    const name = `engine ${index}`;
    const child = new Child({
      name,
      args: ["serve", "--model", model, "--port", "0", ...args],
      env,
      onLine: (line) => {
        if (line.startsWith('{"listening":')) onListening(JSON.parse(line).listening);
      },
    });
    this.children.set(index, child);
    const url = await withDeadline(Promise.race([listening, child.died]), startSeconds, `${name} to listen`);
    await this.client.health(url, { timeoutSeconds: callSeconds });
    await this.client.setWeightVersion(url, version, { timeoutSeconds: callSeconds });
    return url;
  }

  private serve(url: string): void {
    const engine = this.router.add(url);
    this.children.get(engine)?.died.catch((error) => this.onDeath(engine, error));
  }

  private onDeath(engine: number, error: unknown): void {
    this.router.remove(engine, messageOf(error));
    this.children.delete(engine);
    if (this.router.alive().length > 0) this.log(`${messageOf(error)}; its sessions move to other engines`);
    else this.onDied(error instanceof RunnerError ? error : new RunnerError(messageOf(error)));
  }
}
