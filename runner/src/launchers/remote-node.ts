import type { WebSocket } from "ws";
import { deadlineMs } from "../deadline.ts";
import { type Deferred, deferred, failure } from "../deferred.ts";
import { pack, unpack } from "../encoding.ts";
import { RunnerError } from "../errors.ts";
import { ChildDied, type ChildOptions } from "./child.ts";
import type { Node, NodeProcess } from "./node.ts";
import { heartbeatSeconds, type NodeHello, type NodeMessage, type NodeRequest, silenceSeconds } from "./protocol.ts";

/** A machine that has joined, by its connection. Lost once that ends, with everything on it. */
export class RemoteNode implements Node {
  readonly name: string;
  readonly address: string;
  readonly controller: string;
  readonly cpus: number;
  readonly gpus: string[];
  /** When its connection has ended; says why. */
  readonly lost: Promise<string>;
  private readonly socket: WebSocket;
  private readonly processes = new Map<number, RemoteProcess>();
  private readonly ports = new Map<number, Deferred<number>>();
  private lastId = 0;

  /** `address`: of its end of the connection, and of ours. */
  constructor(socket: WebSocket, hello: NodeHello, address: { node: string; controller: string }) {
    this.socket = socket;
    this.name = `${hello.host} (${address.node})`;
    this.address = address.node;
    this.controller = address.controller;
    this.cpus = hello.cpus;
    this.gpus = hello.gpus;
    let isSilent = false;
    let heardAt = Date.now();
    socket.on("message", (bytes: Buffer) => this.hear(unpack(bytes) as NodeMessage));
    socket.on("pong", () => {
      heardAt = Date.now();
    });
    const beat = setInterval(() => {
      isSilent = Date.now() - heardAt > deadlineMs(silenceSeconds);
      if (isSilent) socket.terminate();
      else socket.ping();
    }, deadlineMs(heartbeatSeconds));
    this.lost = new Promise((resolve) => {
      socket.once("close", () => {
        clearInterval(beat);
        const why = isSilent ? `did not answer for ${silenceSeconds} s` : "closed its connection";
        const message = `node ${this.name} ${why}`;
        for (const process of this.processes.values()) process.ended(message);
        for (const port of this.ports.values()) port.reject(new RunnerError(message));
        resolve(message);
      });
    });
  }

  start({ onLine, ...options }: ChildOptions): NodeProcess {
    const id = ++this.lastId;
    const remote = new RemoteProcess(options.name, onLine, (request) => this.send({ ...request, id }));
    this.processes.set(id, remote);
    const cwd = options.cwd ?? process.cwd();
    if (this.isThere) this.send({ type: "start", id, options: { ...options, cwd }, lines: onLine !== undefined });
    else remote.ended(`node ${this.name} was lost before it could start ${options.name}`);
    return remote;
  }

  freePort(): Promise<number> {
    const port = deferred<number>();
    const id = ++this.lastId;
    this.ports.set(id, port);
    if (this.isThere) this.send({ type: "port", id });
    else port.reject(new RunnerError(`node ${this.name} is lost`));
    return port.promise.finally(() => this.ports.delete(id));
  }

  /** It ends its processes and itself. */
  letGo(): void {
    if (this.isThere) this.send({ type: "end" });
    this.socket.close();
  }

  /** Somebody else says that it is gone. */
  giveUp(): void {
    this.socket.terminate();
  }

  private get isThere(): boolean {
    return this.socket.readyState === this.socket.OPEN;
  }

  private send(request: NodeRequest): void {
    this.socket.send(pack(request));
  }

  private hear(message: NodeMessage): void {
    const { id, type } = message;
    const process = this.processes.get(id);
    if (type === "port") this.ports.get(id)?.resolve(message.port);
    else if (type === "line") process?.onLine?.(message.line);
    else {
      this.processes.delete(id);
      process?.ended(type === "died" ? message.message : null);
    }
  }
}

type ProcessRequest = { type: "stop"; graceSeconds?: number } | { type: "kill"; signal: NodeJS.Signals };

/** What a node's messages say of a child there. */
class RemoteProcess implements NodeProcess {
  readonly name: string;
  readonly onLine?: (line: string) => void;
  readonly died: Promise<never>;
  private readonly death = failure();
  private readonly gone = deferred();
  private stopping = false;
  private isGone = false;
  private readonly send: (request: ProcessRequest) => void;

  constructor(name: string, onLine: ChildOptions["onLine"], send: (request: ProcessRequest) => void) {
    this.name = name;
    this.onLine = onLine;
    this.send = send;
    this.died = this.death.promise;
  }

  /** `message`: of its death; null where it was asked to end. */
  ended(message: string | null): void {
    this.isGone = true;
    this.gone.resolve();
    if (!this.stopping && message !== null) this.death.reject(new ChildDied(message));
  }

  async stop(graceSeconds?: number): Promise<void> {
    this.stopping = true;
    if (!this.isGone) this.send({ type: "stop", graceSeconds });
    await this.gone.promise;
  }

  kill(signal: NodeJS.Signals = "SIGKILL"): void {
    if (!this.isGone) this.send({ type: "kill", signal });
  }
}
