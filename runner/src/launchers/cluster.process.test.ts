import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test, vi } from "vitest";
import WebSocket, { WebSocketServer } from "ws";
import { childrenOf, isAlive, until } from "../../test/processes.ts";
import { deferred } from "../deferred.ts";
import { pack } from "../encoding.ts";
import { tinyInit } from "../trainer/fixtures/tiny.ts";
import { RankGroup } from "../trainer/handle.ts";
import { cliPath } from "./child.ts";
import { type ClusterOptions, type Launcher, RemoteCluster } from "./cluster.ts";

const model = fileURLToPath(new URL("../engines/fixtures/tiny-model", import.meta.url));
const clusters: RemoteCluster[] = [];
const pids: number[] = [];
afterEach(async () => {
  await Promise.all(clusters.splice(0).map((cluster) => cluster.close()));
  for (const pid of pids.splice(0)) await until(`node process ${pid} to end`, () => !isAlive(pid));
});

function startNode(url: string, env: Record<string, string>) {
  const words = [cliPath(), "node", "--join", url];
  const child = spawn(process.execPath, words, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  pids.push(child.pid!);
  let said = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      said += text;
    });
  }
  return { child, ended: once(child, "close").then(([code]) => `ended with ${code}: ${said.trim()}`) };
}

/** Node processes of this machine, as a launcher of several has them. */
class Here implements Launcher {
  readonly nodes: ReturnType<typeof startNode>[] = [];
  readonly tokens: string[] = [];
  url = "";

  async launch(slot: number, { url, env }: Parameters<Launcher["launch"]>[1]) {
    this.url = url;
    this.tokens.push(env.MOLT_TOKEN);
    const node = startNode(url, env);
    this.nodes[slot] = node;
    return { ended: node.ended, stop: async () => void (await node.ended) };
  }
}

async function start(changed: Partial<ClusterOptions> = {}) {
  const events: string[] = [];
  const launcher = new Here();
  const cluster = await RemoteCluster.start({
    nodes: 2,
    launcher,
    needsGpus: false,
    host: "127.0.0.1",
    startSeconds: 60,
    maxRestarts: 2,
    emit: (event) => events.push(event.type === "node" ? `${event.node} ${event.state}: ${event.message}` : "warning"),
    ...changed,
  });
  clusters.push(cluster);
  return { cluster, launcher, events, ready: () => cluster.ready(new AbortController().signal) };
}

describe("a cluster of two nodes", () => {
  test("trains over both as over one machine, and leaves no process", async () => {
    const { cluster, launcher, ready } = await start();
    await ready();
    const seats = await Promise.all([0, 1].map((node) => cluster.seat({ node, devices: [0] })));
    const deadlines = { start: 60, request: 60 };
    const [apart, together] = await Promise.all([
      RankGroup.start({ count: 2, seats, init: tinyInit(), deadlines }),
      RankGroup.start({ count: 2, init: tinyInit(), deadlines }),
    ]);
    expect(launcher.nodes.map(({ child }) => childrenOf(child.pid!).length)).toEqual([1, 1]);
    expect(await apart.all("checksum", {})).toEqual(await together.all("checksum", {}));
    await Promise.all([apart.stop(), together.stop()]);
    const ranks = launcher.nodes.flatMap(({ child }) => childrenOf(child.pid!));
    expect(ranks).toEqual([]);
  });

  test("a process's lines and its death are its starter's; so is the node's, which comes back", async () => {
    const { cluster, launcher, events, ready } = await start();
    await ready();
    const { node } = await cluster.seat({ node: 1, devices: [0] });
    const listening = deferred<string>();
    const args = ["serve", "--model", model, "--init", "random", "--port", "0"];
    const serve = () => node.start({ name: "engine 3", args, onLine: listening.resolve });
    const [killed, lost] = [serve(), serve()];
    expect(JSON.parse(await listening.promise).listening).toMatch(/^http:/);
    killed.kill("SIGKILL");
    await expect(killed.died).rejects.toThrow("engine 3 was killed by SIGKILL");
    const { child } = launcher.nodes[1]!;
    const [engine] = childrenOf(child.pid!);
    child.kill("SIGKILL");
    await expect(lost.died).rejects.toThrow(/^node .* closed its connection$/);
    await until("the dead node's engine to end", () => !isAlive(engine!));
    // What is asked for meanwhile goes to the node that is left.
    expect((await cluster.seat({ node: 1, devices: [0] })).node).toBe(
      (await cluster.seat({ node: 0, devices: [] })).node,
    );
    await expect(node.start({ name: "engine 3", args }).died).rejects.toThrow(
      "was lost before it could start engine 3",
    );
    await ready();
    expect((await cluster.seat({ node: 1, devices: [0] })).node).not.toBe(node);
    expect(events.filter((event) => event.startsWith("1 ")).map((event) => event.slice(0, 9))).toEqual([
      "1 started",
      "1 died: n",
      "1 started",
    ]);
  });

  test("tells its engines the run's key, vLLM's by vLLM's name", async () => {
    vi.stubEnv("MOLT_API_KEY", "of-the-run");
    const { cluster, ready } = await start({ nodes: 1 });
    await ready();
    const { env } = await cluster.seat({ node: 0, devices: [0] });
    expect(env).toMatchObject({ MOLT_API_KEY: "of-the-run", VLLM_API_KEY: "of-the-run" });
    vi.unstubAllEnvs();
  });

  test("lets nobody in without a token that is waited for: not even with one that was used", async () => {
    const { launcher, ready } = await start();
    await ready();
    const [used] = launcher.tokens;
    for (const greeting of ["no message of ours", pack(null), pack({ token: "guess" }), pack({ token: used })]) {
      const stranger = new WebSocket(launcher.url);
      stranger.on("open", () => stranger.send(greeting));
      await new Promise((resolve) => stranger.once("close", resolve));
    }
    await ready();
  });

  test("names the nodes that do not come, and why", async () => {
    const launcher: Launcher = {
      launch: async () => ({ ended: Promise.resolve("it has no libtorch"), stop: async () => {} }),
    };
    const { ready } = await start({ launcher, maxRestarts: 0 });
    await expect(ready()).rejects.toThrow("node 0 does not come: it has no libtorch");
    const waiting: Launcher = {
      launch: (_, { waits, signal }) => {
        waits("waits in the queue");
        return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("over"))));
      },
    };
    const slow = await start({ launcher: waiting, startSeconds: 0.3 });
    await expect(slow.ready()).rejects.toThrow(
      "waited 0.3 s for node 0 (waits in the queue), node 1 (waits in the queue)",
    );
  });

  test("refuses a place on a GPU that a node has not got", async () => {
    const { cluster, ready } = await start({ needsGpus: true });
    await ready();
    await expect(cluster.seat({ node: 0, devices: [0] })).rejects.toThrow("has 0 GPUs, and GPU 0 of it is asked for");
  });
});

describe("a node", () => {
  test("ends with what it started when its controller is gone, or silent", async () => {
    for (const [how, said] of [
      ["gone", "closed the connection: its run is over"],
      ["silent", "was silent for 30 s"],
    ] as const) {
      const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
      await once(server, "listening");
      const { port } = server.address() as { port: number };
      const { child, ended } = startNode(`ws://127.0.0.1:${port}`, { MOLT_TOKEN: "t", MOLT_DEADLINE_SCALE: "0.05" });
      const [socket] = (await once(server, "connection")) as [WebSocket];
      const beat = setInterval(() => socket.ping(), 100);
      await once(socket, "message");
      const args = ["serve", "--model", model, "--init", "random", "--port", "0"];
      socket.send(pack({ type: "start", id: 1, options: { name: "engine 0", args }, lines: true }));
      await once(socket, "message");
      const [engine] = childrenOf(child.pid!);
      clearInterval(beat);
      if (how === "gone") socket.terminate();
      expect(await ended).toMatch(new RegExp(`^ended with 1: .*${said}`));
      expect(isAlive(engine!)).toBe(false);
      server.close();
    }
  });

  test("needs a token, and says so; says who does not answer", async () => {
    expect(await startNode("ws://127.0.0.1:1", { MOLT_TOKEN: "" }).ended).toMatch(
      /^ended with 2: .*MOLT_TOKEN is not set/,
    );
    expect(await startNode("ws://127.0.0.1:1", { MOLT_TOKEN: "t" }).ended).toMatch(
      /^ended with 1: .*the controller at ws:\/\/127.0.0.1:1 does not answer/,
    );
  });
});
