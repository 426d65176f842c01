import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { request } from "undici";
import { deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import type { Join, Launched, Launcher } from "./cluster.ts";
import { shellWord } from "./words.ts";

/** What is read of a node of `GET /api/v0/nodes?detail=1`. */
interface RayNode {
  node_id: string;
  node_ip: string;
  state: string;
  resources_total: { GPU?: number };
}

interface RayJob {
  status: "PENDING" | "RUNNING" | "SUCCEEDED" | "FAILED" | "STOPPED";
  message: string | null;
}

const pollSeconds = 2;
/** For a node process that was let go to end by itself, and for one that Ray was told to stop. */
const leaveSeconds = 10;
const stopSeconds = 20;

/** One job a node, through Ray's Jobs API: Ray places no group of jobs, so each is bound to a node chosen here. */
export class RayLauncher implements Launcher {
  private readonly address: string;
  private readonly command: string[];
  private readonly runId: string;
  /** Ids of the nodes that slots are on. */
  private readonly taken = new Map<number, string>();

  constructor(address: string, command: string[], runId: string) {
    this.address = address.replace(/\/$/, "");
    this.command = command;
    this.runId = runId;
  }

  async launch(slot: number, { url, env, signal, waits }: Join): Promise<Launched> {
    const node = await this.freeNode(slot, signal, waits);
    // Ids are never used twice.
    const id = `molt-${this.runId}-node-${slot}-${randomBytes(3).toString("hex")}`;
    await this.call("POST", "/api/jobs/", {
      entrypoint: `exec ${[...this.command, "node", "--join", url].map(shellWord).join(" ")}`,
      submission_id: id,
      entrypoint_num_gpus: node.resources_total.GPU ?? 0,
      entrypoint_label_selector: { "ray.io/node-id": node.node_id },
      // Whoever may read jobs of this Ray may also start some: no more than that is in here.
      runtime_env: { env_vars: env },
      metadata: { run: this.runId, slot: String(slot) },
    });
    const stopped = new AbortController();
    return { ended: this.watch(id, node, stopped.signal), stop: () => this.stop(id, stopped) };
  }

  /** Of those that no other slot is on, one with most GPUs; waits until there is one. */
  private async freeNode(slot: number, signal: AbortSignal, waits: (what: string) => void): Promise<RayNode> {
    this.taken.delete(slot);
    for (;;) {
      const nodes = (await this.nodes()).filter(({ state }) => state === "ALIVE");
      const used = new Set(this.taken.values());
      const gpus = ({ resources_total: { GPU = 0 } }: RayNode) => GPU;
      const [node] = nodes.filter(({ node_id }) => !used.has(node_id)).sort((one, other) => gpus(other) - gpus(one));
      if (node) {
        this.taken.set(slot, node.node_id);
        return node;
      }
      waits(`waits for a node: Ray at ${this.address} has ${nodes.length}, all in use by this run`);
      await sleep(deadlineMs(pollSeconds), null, { signal });
    }
  }

  /** Resolves when the job, or its node, has ended; never once it was told to stop. */
  private async watch(id: string, { node_id, node_ip }: RayNode, stopped: AbortSignal): Promise<string> {
    for (;;) {
      // While Ray does not answer, the node's own connection tells.
      const job = await this.job(id).catch(() => null);
      if (job && isOver(job)) return `Ray's job ${id} is ${job.status}: ${job.message}`;
      const nodes = await this.nodes().catch(() => null);
      if (nodes && !nodes.some((node) => node.node_id === node_id && node.state === "ALIVE")) {
        return `Ray says that its node ${node_ip} is dead`;
      }
      await sleep(deadlineMs(pollSeconds), null, { signal: stopped, ref: false }).catch(() => {});
      if (stopped.aborted) return new Promise(() => {});
    }
  }

  /** A job that still waits for its node starts one day all the same: it is turned away then. */
  private async stop(id: string, stopped: AbortController): Promise<void> {
    stopped.abort();
    if (await this.isOverWithin(id, leaveSeconds)) return;
    await this.call("POST", `/api/jobs/${id}/stop`);
    if (!(await this.isOverWithin(id, stopSeconds))) throw new RunnerError(`Ray has not stopped job ${id}`);
  }

  private async isOverWithin(id: string, seconds: number): Promise<boolean> {
    for (const end = Date.now() + deadlineMs(seconds); ; await sleep(500)) {
      const job = await this.job(id);
      if (isOver(job)) return true;
      if (job.status === "PENDING" || Date.now() > end) return false;
    }
  }

  private job(id: string): Promise<RayJob> {
    return this.call<RayJob>("GET", `/api/jobs/${id}`);
  }

  private async nodes(): Promise<RayNode[]> {
    const answer = await this.call<{ data: { result: { result: RayNode[] } } }>("GET", "/api/v0/nodes?detail=1");
    return answer.data.result.result;
  }

  /** Not by `fetch`: Ray refuses posts with headers that look like a browser's. */
  private async call<T>(method: "GET" | "POST", path: string, json?: object): Promise<T> {
    const timeout = deadlineMs(stopSeconds);
    const headers = { "content-type": "application/json", ...authorization() };
    const options = {
      method,
      headers,
      body: json && JSON.stringify(json),
      headersTimeout: timeout,
      bodyTimeout: timeout,
    };
    const { statusCode, body } = await request(`${this.address}${path}`, options).catch((error) => {
      throw new RunnerError(`Ray at ${this.address} does not answer: ${messageOf(error)}`, {
        fix: "launcher.address: the URL of its dashboard, port 8265 of the head node unless told otherwise",
      });
    });
    const text = await body.text();
    if (statusCode === 200) return JSON.parse(text) as T;
    const fix = statusCode === 401 || statusCode === 403 ? "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" : undefined;
    throw new RunnerError(`Ray answers ${method} ${path} with ${statusCode}: ${lastLine(text)}`, { fix });
  }
}

function isOver({ status }: RayJob): boolean {
  return status !== "PENDING" && status !== "RUNNING";
}

function authorization(): Record<string, string> {
  const { RAY_AUTH_TOKEN: token, RAY_AUTH_TOKEN_PATH: path } = process.env;
  const secret = token ?? (path && readFileSync(path, "utf8").trim());
  return secret ? { authorization: `Bearer ${secret}` } : {};
}

/** Of a Python traceback, what it is about. */
function lastLine(text: string): string {
  return text.trim().split("\n").at(-1)!;
}
