import { randomBytes } from "node:crypto";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { type WebSocket, WebSocketServer } from "ws";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { type Deferred, deferred, failure } from "../deferred.ts";
import { unpackHello } from "../encoding.ts";
import { messageOf, RunnerError } from "../errors.ts";
import type { Place } from "../recipe/planner/placement.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { deviceEnvironment, visibleGpus } from "./devices.ts";
import { localNode, type Seat } from "./node.ts";
import type { NodeHello } from "./protocol.ts";
import { RemoteNode } from "./remote-node.ts";

/** The machines of a run. */
export interface Cluster {
  /** When every node is there, or `interrupted` aborts. */
  ready(interrupted: AbortSignal): Promise<void>;
  seat(place: Place): Promise<Seat>;
  close(): Promise<void>;
}

let ownGpus: Promise<string[]> | undefined;

/** This machine alone. */
export const localCluster: Cluster = {
  ready: async () => {},
  async seat({ devices }) {
    ownGpus ??= visibleGpus();
    return { node: localNode, env: deviceEnvironment(await ownGpus, devices) };
  },
  close: async () => {},
};

/** A node process that was asked for; `ended` says why, before or after it has joined. */
export interface Launched {
  ended: Promise<string>;
  stop(): Promise<void>;
}

/** What brings node processes to machines. */
export interface Launcher {
  /** `molt-runner node --join URL` with the token in its environment, on a machine where no other slot's is. */
  launch(slot: number, join: Join): Promise<Launched>;
}

export interface Join {
  url: string;
  env: { MOLT_TOKEN: string };
  /** Aborted when the run ends. */
  signal: AbortSignal;
  /** To be told what it waits for. */
  waits: (what: string) => void;
}

export interface ClusterOptions {
  nodes: number;
  launcher: Launcher;
  /** That all of them must have. */
  needsGpus: boolean;
  /** Where nodes reach this process. */
  host: string;
  /** For all nodes to be there. */
  startSeconds: number;
  /** Times in a row that a node which does not come is asked for again. */
  maxRestarts: number;
  emit: (event: Extract<RunEvent, { type: "node" | "warning" }>) => void;
}

interface Slot {
  joined: Deferred<RemoteNode>;
  node: RemoteNode | null;
  /** What it waits for, in words. */
  state: string;
}

const pauseSeconds = 2;

/** Nodes that a launcher started, each asked for again when it is lost. */
export class RemoteCluster implements Cluster {
  private readonly options: ClusterOptions;
  private readonly server: WebSocketServer;
  private readonly slots: Slot[];
  /** Of nodes that may join: each has a token of its own, so that one which was given up cannot. */
  private readonly expected = new Map<string, Deferred<RemoteNode>>();
  private readonly failed = failure();
  private readonly closing = new AbortController();
  private readonly closed: Promise<string>;
  private readonly keeping: Promise<void>[];

  private constructor(server: WebSocketServer, options: ClusterOptions) {
    this.server = server;
    this.options = options;
    server.on("connection", (socket, request) => this.receive(socket, request));
    this.closed = once(this.closing.signal, "abort").then(() => "the run ended");
    const newSlot = (): Slot => ({ joined: deferred(), node: null, state: "not asked for yet" });
    this.slots = Array.from({ length: options.nodes }, newSlot);
    this.keeping = this.slots.map((slot, index) => this.keep(slot, index));
  }

  static async start(options: ClusterOptions): Promise<RemoteCluster> {
    const server = new WebSocketServer({ host: "0.0.0.0", port: 0, perMessageDeflate: false, maxPayload: 2 ** 26 });
    await once(server, "listening");
    return new RemoteCluster(server, options);
  }

  async ready(interrupted: AbortSignal): Promise<void> {
    const { startSeconds } = this.options;
    const all = Promise.all(this.slots.map(({ joined }) => joined.promise));
    const missing = () =>
      this.slots.flatMap(({ node, state }, index) => (node ? [] : [`node ${index} (${state})`])).join(", ");
    const aborted = new Promise((resolve) => interrupted.addEventListener("abort", resolve, { once: true }));
    await withDeadline(Promise.race([all, aborted, this.failed.promise]), startSeconds, missing);
  }

  /** On its node, once that is there; where devices are no matter, on another while it is not. */
  async seat({ node: index, devices }: Place): Promise<Seat> {
    const slot = this.slots[index]!;
    const other = this.slots.find(({ node }) => node !== null && node.gpus.length === 0)?.node;
    const coming = () => {
      const joined = Promise.race([slot.joined.promise, this.failed.promise]);
      return withDeadline(joined, this.options.startSeconds, () => `node ${index} (${slot.state})`);
    };
    const node = slot.node ?? other ?? (await coming());
    const missing =
      node.gpus.length > 0 || this.options.needsGpus ? devices.find((one) => one >= node.gpus.length) : undefined;
    if (missing !== undefined) {
      throw new RunnerError(`node ${node.name} has ${node.gpus.length} GPUs, and GPU ${missing} of it is asked for`, {
        fix: "launcher.devices_per_node: how many each node has",
      });
    }
    const { MOLT_API_KEY = "" } = process.env;
    // Ours ask for the one, vLLM for the other.
    const keys = { MOLT_API_KEY, VLLM_API_KEY: MOLT_API_KEY };
    return { node, env: { ...deviceEnvironment(node.gpus, devices), ...keys } };
  }

  async close(): Promise<void> {
    this.closing.abort();
    await Promise.all(this.keeping);
    for (const client of this.server.clients) client.terminate();
    await new Promise((resolve) => this.server.close(resolve));
  }

  /** Has a node in the slot, again and again. */
  private async keep(slot: Slot, index: number): Promise<void> {
    const { signal } = this.closing;
    for (let failures = 0; !signal.aborted; ) {
      slot.state = "asked for";
      const { hasJoined, why } = await this.live(slot, index);
      if (signal.aborted) return;
      slot.state = why;
      this.options.emit({ type: "node", node: index, state: "died", message: why });
      failures = hasJoined ? 1 : failures + 1;
      if (failures > this.options.maxRestarts) {
        return this.failed.reject(new RunnerError(`node ${index} does not come: ${why}`));
      }
      await sleep(deadlineMs(pauseSeconds), null, { signal }).catch(() => {});
    }
  }

  /** One node in the slot, from its launch to its end. */
  private async live(slot: Slot, index: number): Promise<{ hasJoined: boolean; why: string }> {
    const { signal } = this.closing;
    const token = randomBytes(24).toString("base64url");
    const joining = deferred<RemoteNode>();
    this.expected.set(token, joining);
    const url = `ws://${this.options.host}:${(this.server.address() as AddressInfo).port}`;
    let launched: Launched | undefined;
    let hasJoined = false;
    try {
      const waits = (what: string) => {
        slot.state = what;
      };
      launched = await this.options.launcher.launch(index, { url, env: { MOLT_TOKEN: token }, signal, waits });
      slot.state = "launched, has not joined";
      const ended = Promise.race([launched.ended, this.closed]);
      const node = await Promise.race([joining.promise, ended]);
      if (typeof node === "string") return { hasJoined, why: node };
      hasJoined = true;
      this.admit(slot, index, node);
      const why = await Promise.race([node.lost, ended]);
      if (signal.aborted) node.letGo();
      else node.giveUp();
      return { hasJoined, why };
    } catch (error) {
      return { hasJoined, why: messageOf(error) };
    } finally {
      this.expected.delete(token);
      await launched?.stop().catch((error) => {
        this.options.emit({ type: "warning", message: `node ${index}: ${messageOf(error)}` });
      });
    }
  }

  private admit(slot: Slot, index: number, node: RemoteNode): void {
    slot.node = node;
    slot.joined.resolve(node);
    node.onLost = () => {
      slot.node = null;
      slot.joined = deferred();
    };
    const devices = node.gpus.length > 0 ? `${node.gpus.length} GPUs` : `${node.cpus} CPUs`;
    this.options.emit({ type: "node", node: index, state: "started", message: `${node.name}: ${devices}` });
  }

  private receive(socket: WebSocket, request: IncomingMessage): void {
    socket.on("error", () => {});
    socket.once("message", (bytes: Buffer) => {
      const hello = unpackHello<NodeHello>(bytes);
      const joining = this.expected.get(String(hello?.token));
      if (!hello || !joining) return socket.terminate();
      this.expected.delete(hello.token);
      const { remoteAddress, localAddress } = request.socket;
      joining.resolve(new RemoteNode(socket, hello, { node: remoteAddress!, controller: localAddress! }));
    });
  }
}
