import { randomBytes } from "node:crypto";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { DeadlineError, deadlineMs, withDeadline } from "../deadline.ts";
import { type Deferred, deferred } from "../deferred.ts";
import { pack, unpack, unpackHello } from "../encoding.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { ChildDied, orDeath } from "../launchers/child.ts";
import { localNode, type Node, type NodeProcess, type Seat } from "../launchers/node.ts";
import { sameSecret } from "../secret.ts";
import type { Hello, InitParams, RankMethod, RankMethods, Request, Response } from "./protocol.ts";
import { rowCost } from "./row-cost.ts";

export interface RankGroupOptions {
  count: number;
  /** By rank; this machine for all where not given. */
  seats?: Seat[];
  init: Omit<InitParams, "worldSize" | "store">;
  /** Seconds: to every rank initialized; for one request. */
  deadlines: { start: number; request: number };
}

/** A rank that died, or kept the others waiting: what they hold together is gone. */
export class RankLost extends ChildDied {
  readonly rank: number;
  constructor(rank: number, cause: unknown) {
    super(messageOf(cause), { cause });
    this.rank = rank;
  }
}

type Params<M extends RankMethod> = RankMethods[M][0];
type Result<M extends RankMethod> = RankMethods[M][1];

class Rank {
  socket: WebSocket | null = null;
  private readonly pending = new Map<number, Deferred<unknown>>();
  private lastId = 0;

  constructor(readonly child: NodeProcess) {}

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
      const closed = new RunnerError(`${this.child.name} closed its connection`);
      for (const request of this.pending.values()) request.reject(closed);
      this.pending.clear();
    });
  }

  async request(method: RankMethod, params: unknown): Promise<unknown> {
    if (this.socket?.readyState !== 1) throw new RunnerError(`${this.child.name} is not connected`);
    const answer = deferred<unknown>();
    const id = ++this.lastId;
    this.pending.set(id, answer);
    this.socket.send(pack({ id, method, params } as Request));
    return answer.promise;
  }
}

export type Ranks = Pick<RankGroup, "dataCount" | "contextSize" | "rowCost" | "hasReference" | "all">;

export class RankGroup {
  /** When a rank ends before `stop`, with its last lines; never resolves. */
  readonly died: Promise<never>;
  readonly hasReference: boolean;
  /** Neighbours that share each row. */
  readonly contextSize: number;
  /** Of so many tokens. */
  readonly rowCost: (tokens: number) => number;
  readonly url: string;
  /** Of rank 0, which serves the stores that groups form by. */
  readonly node: Node;
  private readonly ranks: Rank[];
  private readonly server: WebSocketServer;
  private readonly deadlines: RankGroupOptions["deadlines"];

  private constructor(ranks: Rank[], server: WebSocketServer, node: Node, { init, deadlines }: RankGroupOptions) {
    this.ranks = ranks;
    this.node = node;
    this.server = server;
    this.deadlines = deadlines;
    this.hasReference = init.ref !== null;
    this.contextSize = init.mesh.contextSize;
    this.rowCost = rowCost(init.policy.config);
    this.url = urlOf(server);
    const deaths = ranks.map(({ child }, rank) =>
      child.died.catch((error) => Promise.reject(new RankLost(rank, error))),
    );
    this.died = Promise.race(deaths);
    this.died.catch(() => {});
  }

  /** Initialized when this resolves; on failure none is left. */
  static async start(options: RankGroupOptions): Promise<RankGroup> {
    const { count, init, deadlines } = options;
    const seats = options.seats ?? Array.from({ length: count }, (): Seat => ({ node: localNode }));
    const token = randomBytes(24).toString("base64url");
    const isLocal = seats.every(({ node }) => node === localNode);
    const place = { host: isLocal ? localNode.address : "0.0.0.0", port: 0 };
    const server = new WebSocketServer({ ...place, perMessageDeflate: false, maxPayload: 2 ** 31 - 1 });
    await once(server, "listening");
    const ranks = seats.map(({ node, env }, rank) => {
      const args = ["rank", "--controller", urlOf(server, node.controller), "--rank", String(rank)];
      return new Rank(node.start({ name: `rank ${rank}`, args, env: { ...env, MOLT_TOKEN: token } }));
    });
    const { node } = seats[0]!;
    const group = new RankGroup(ranks, server, node, options);
    try {
      const connected = acceptRanks(server, ranks, token);
      await withDeadline(Promise.race([connected, group.died]), deadlines.start, `${count} rank processes to connect`);
      // A rank that reads its weights keeps the others waiting in their group.
      const timeoutMs = deadlineMs(Math.max(deadlines.start, deadlines.request));
      const store = { host: node.address, port: await node.freePort(), timeoutMs };
      await group.all("init", { ...init, worldSize: count, store }, deadlines.start);
      return group;
    } catch (error) {
      await group.stop();
      throw error;
    }
  }

  get count(): number {
    return this.ranks.length;
  }

  /** Ranks, or groups of neighbours, that have rows of their own. */
  get dataCount(): number {
    return this.ranks.length / this.contextSize;
  }

  get children(): NodeProcess[] {
    return this.ranks.map((rank) => rank.child);
  }

  /** Collective methods go to `all`. */
  async call<M extends RankMethod>(
    rank: number,
    method: M,
    params: Params<M>,
    seconds = this.deadlines.request,
  ): Promise<Result<M>> {
    const { child } = this.ranks[rank]!;
    try {
      const request = this.ranks[rank]!.request(method, params);
      const answer = withDeadline(request, seconds, `${child.name} to answer ${method}`);
      // A dead rank breaks its peers' collectives.
      return (await orDeath(answer, this.died, 5)) as Result<M>;
    } catch (error) {
      if (error instanceof RankLost) throw error;
      const isLost = error instanceof DeadlineError || this.ranks[rank]!.socket?.readyState !== 1;
      throw isLost ? new RankLost(rank, error) : error;
    }
  }

  /** One request to all, or each data rank its own; results by data rank: those who share its rows say the same. */
  async all<M extends RankMethod>(
    method: M,
    params: Params<M> | ((dataRank: number) => Params<M>),
    seconds?: number,
  ): Promise<Result<M>[]> {
    const paramsOf = (typeof params === "function" ? params : () => params) as (dataRank: number) => Params<M>;
    const calls = this.ranks.map((_, rank) =>
      this.call(rank, method, paramsOf(Math.floor(rank / this.contextSize)), seconds),
    );
    return (await Promise.all(calls)).filter((_, rank) => rank % this.contextSize === 0);
  }

  async stop(): Promise<void> {
    await Promise.all(this.ranks.map((rank) => rank.child.stop()));
    for (const client of this.server.clients) client.terminate();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

/** When every rank has said hello with the token; others are turned away. */
function acceptRanks(server: WebSocketServer, ranks: Rank[], token: string): Promise<void> {
  return new Promise((resolve) => {
    server.on("connection", (socket) => {
      socket.on("error", () => {});
      socket.once("message", (bytes: Buffer) => {
        const hello = unpackHello<Hello>(bytes);
        const rank = hello && sameSecret(String(hello.token), token) ? ranks[hello.rank] : undefined;
        if (rank === undefined || rank.socket !== null) return socket.terminate();
        rank.attach(socket);
        if (ranks.every((one) => one.socket !== null)) resolve();
      });
    });
  });
}

function urlOf(server: WebSocketServer, host = localNode.controller): string {
  return `ws://${host}:${(server.address() as AddressInfo).port}`;
}
