import { randomBytes, timingSafeEqual } from "node:crypto";
import type { AddressInfo } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { pack, unpack } from "../encoding.ts";
import { RunnerError } from "../errors.ts";
import { Child } from "../launchers/child.ts";
import { freePort } from "./free-port.ts";
import type { Hello, InitParams, RankMethod, RankMethods, Request, Response } from "./protocol.ts";

export interface RankGroupOptions {
  /** Rank processes to start on this machine. */
  count: number;
  init: Omit<InitParams, "worldSize" | "store">;
  /** Seconds: from start to every rank initialized; one request. */
  deadlines: { start: number; request: number };
}

type Params<M extends RankMethod> = RankMethods[M][0];
type Result<M extends RankMethod> = RankMethods[M][1];

interface Pending {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

const noParams = {} as Record<string, never>;

/** One rank as the controller sees it: its process, its socket and the requests it has not answered. */
class Rank {
  readonly child: Child;
  socket: WebSocket | null = null;
  readonly pending = new Map<number, Pending>();
  private lastId = 0;

  constructor(child: Child) {
    this.child = child;
  }

  attach(socket: WebSocket): void {
    this.socket = socket;
    socket.on("message", (bytes: Buffer) => {
      const { id, result, error } = unpack(bytes) as Response;
      const request = this.pending.get(id);
      this.pending.delete(id);
      if (error === undefined) request?.resolve(result);
      else request?.reject(new RunnerError(`${this.child.name}: ${error}`));
    });
    socket.once("close", () => {
      for (const request of this.pending.values()) {
        request.reject(new RunnerError(`${this.child.name} closed its connection`));
      }
      this.pending.clear();
    });
  }

  request(method: RankMethod, params: unknown): Promise<unknown> {
    const socket = this.socket;
    if (socket?.readyState !== 1) return Promise.reject(new RunnerError(`${this.child.name} is not connected`));
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      socket.send(pack({ id, method, params } as Request));
    });
  }
}

/** What a batch needs of the ranks. */
export type Ranks = Pick<RankGroup, "count" | "hasReference" | "all">;

/** The controller's handle on the rank processes: they start, answer and end together. */
export class RankGroup {
  /** Rejects, never resolves, when a rank ends before `stop`, with that rank's last lines. */
  readonly died: Promise<never>;
  readonly hasReference: boolean;
  /** Where ranks connect. */
  readonly url: string;
  /** Numbers of the policy. */
  parameters = 0;
  private readonly ranks: Rank[];
  private readonly server: WebSocketServer;
  private readonly deadlines: RankGroupOptions["deadlines"];

  private constructor(ranks: Rank[], server: WebSocketServer, { init, deadlines }: RankGroupOptions) {
    this.ranks = ranks;
    this.server = server;
    this.deadlines = deadlines;
    this.hasReference = init.ref !== null;
    this.url = urlOf(server);
    this.died = Promise.race(ranks.map((rank) => rank.child.died));
    this.died.catch(() => {});
  }

  /** Starts `count` processes and initializes them; on any failure none is left. */
  static async start(options: RankGroupOptions): Promise<RankGroup> {
    const { count, init, deadlines } = options;
    const token = randomBytes(24).toString("base64url");
    const server = new WebSocketServer({
      host: "127.0.0.1",
      port: 0,
      perMessageDeflate: false,
      maxPayload: 2 ** 31 - 1,
    });
    await new Promise((resolve, reject) => server.once("listening", resolve).once("error", reject));
    const ranks = Array.from({ length: count }, (_, rank) => {
      const args = ["rank", "--controller", urlOf(server), "--rank", String(rank)];
      return new Rank(new Child({ name: `rank ${rank}`, args, env: { MOLT_TOKEN: token } }));
    });
    const group = new RankGroup(ranks, server, options);
    try {
      const connected = acceptRanks(server, ranks, token);
      await withDeadline(Promise.race([connected, group.died]), deadlines.start, `${count} rank processes to connect`);
      const timeoutMs = deadlineMs(deadlines.request);
      const store = { host: "127.0.0.1", port: await freePort(), timeoutMs };
      const results = await group.all("init", { ...init, worldSize: count, store }, deadlines.start);
      group.parameters = results[0]!.parameters;
      return group;
    } catch (error) {
      await group.stop();
      throw error;
    }
  }

  get count(): number {
    return this.ranks.length;
  }

  /** The processes, by rank. */
  get children(): Child[] {
    return this.ranks.map((rank) => rank.child);
  }

  /** One request to one rank. Collective methods go to `all`. */
  async call<M extends RankMethod>(
    rank: number,
    method: M,
    params: Params<M>,
    seconds = this.deadlines.request,
  ): Promise<Result<M>> {
    const { child } = this.ranks[rank]!;
    try {
      const answer = Promise.race([this.ranks[rank]!.request(method, params), this.died]);
      return (await withDeadline(answer, seconds, `${child.name} to answer ${method}`)) as Result<M>;
    } catch (error) {
      // A dead rank breaks its peers' collectives: give its own death a moment to be known, it is the cause.
      await Promise.race([this.died, new Promise((resolve) => setTimeout(resolve, deadlineMs(1)))]);
      throw error;
    }
  }

  /** The same request to every rank, or each its own; results by rank. */
  all<M extends RankMethod>(
    method: M,
    params: Params<M> | ((rank: number) => Params<M>),
    seconds?: number,
  ): Promise<Result<M>[]> {
    const paramsOf = typeof params === "function" ? params : () => params;
    return Promise.all(this.ranks.map((_, rank) => this.call(rank, method, paramsOf(rank), seconds)));
  }

  /** Weights to the engines of the transfer group; resolves with the checksum they must report. */
  async broadcastWeights(): Promise<string> {
    const results = await this.all("broadcastWeights", noParams);
    return results[0]!.checksum;
  }

  /** Ends all rank processes; safe to call twice. */
  async stop(): Promise<void> {
    await Promise.all(this.ranks.map((rank) => rank.child.stop()));
    for (const client of this.server.clients) client.terminate();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** Resolves when every rank has said hello with the token; anybody else is turned away. */
function acceptRanks(server: WebSocketServer, ranks: Rank[], token: string): Promise<void> {
  return new Promise((resolve) => {
    server.on("connection", (socket) => {
      socket.on("error", () => {});
      socket.once("message", (bytes: Buffer) => {
        const hello = readHello(bytes);
        const rank = hello && sameToken(hello.token, token) ? ranks[hello.rank] : undefined;
        if (rank === undefined || rank.socket !== null) return socket.terminate();
        rank.attach(socket);
        if (ranks.every((one) => one.socket !== null)) resolve();
      });
    });
  });
}

function readHello(bytes: Buffer): Hello | null {
  try {
    return unpack(bytes) as Hello | null;
  } catch {
    return null;
  }
}

function urlOf(server: WebSocketServer): string {
  return `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function sameToken(given: string, token: string): boolean {
  const [a, b] = [Buffer.from(String(given)), Buffer.from(token)];
  return a.length === b.length && timingSafeEqual(a, b);
}
