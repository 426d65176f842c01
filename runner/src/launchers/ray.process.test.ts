import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RayLauncher } from "./ray.ts";
import { shellWord } from "./words.ts";

/** What Ray 2.60 answered, cut to the fields that are read. */
const node = (id: string, ip: string, GPU?: number) => ({
  node_id: id,
  node_ip: ip,
  state: "ALIVE",
  resources_total: { CPU: 2, ...(GPU && { GPU }) },
});

let server: Server;
let nodes: ReturnType<typeof node>[];
let status: string;
let calls: { line: string; json: Record<string, unknown>; headers: IncomingMessage["headers"] }[];

beforeEach(async () => {
  vi.stubEnv("MOLT_DEADLINE_SCALE", "0.02");
  [calls, status] = [[], "RUNNING"];
  nodes = [node("aa", "10.0.0.1"), node("bb", "10.0.0.2", 8)];
  server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    const line = `${request.method} ${request.url!.replace(/molt-r-node-(\d)-\w+/, "JOB$1")}`;
    calls.push({ line, json: text ? JSON.parse(text) : {}, headers: request.headers });
    if (line.endsWith("/stop")) status = "STOPPED";
    const answers: [RegExp, object][] = [
      [/^GET .api.v0.nodes/, { result: true, data: { result: { result: nodes } } }],
      [/^GET .api.jobs.JOB/, { status, message: "Job was intentionally stopped." }],
      [/^/, {}],
    ];
    response.end(JSON.stringify(answers.find(([pattern]) => pattern.test(line))![1]));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
});
afterEach(() => {
  vi.unstubAllEnvs();
  server.closeAllConnections();
  server.close();
});

const launcher = () =>
  new RayLauncher(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, ["node", "it's cli.js"], "r");
const join = (signal = new AbortController().signal) => ({
  url: "ws://10.0.0.9:1",
  env: { MOLT_TOKEN: "secret" },
  signal,
  waits: vi.fn(),
});

test("each node gets one job, bound to it, with all its GPUs; the token is in the environment alone", async () => {
  const ray = launcher();
  for (const slot of [0, 1]) await ray.launch(slot, join());
  const jobs = calls.filter(({ line }) => line === "POST /api/jobs/").map(({ json }) => json);
  expect(jobs.map((job) => job.entrypoint_label_selector)).toEqual([
    { "ray.io/node-id": "bb" },
    { "ray.io/node-id": "aa" },
  ]);
  expect(jobs.map((job) => job.entrypoint_num_gpus)).toEqual([8, 0]);
  for (const { runtime_env, ...rest } of jobs) {
    expect(runtime_env).toEqual({ env_vars: { MOLT_TOKEN: "secret" } });
    expect(JSON.stringify(rest)).not.toContain("secret");
    expect(rest.entrypoint).toBe(`exec 'node' 'it'\\''s cli.js' 'node' '--join' 'ws://10.0.0.9:1'`);
  }
  expect(new Set(jobs.map((job) => job.submission_id)).size).toBe(2);
});

test("a third node is waited for, and said to be; a node's place is free once it is lost", async () => {
  const ray = launcher();
  for (const slot of [0, 1]) await ray.launch(slot, join());
  const [third, end] = [join(), new AbortController()];
  const waiting = ray.launch(2, { ...third, signal: end.signal });
  await vi.waitFor(
    () => expect(third.waits).toHaveBeenCalledWith(expect.stringContaining("has 2, all in use")),
    20_000,
  );
  end.abort();
  await expect(waiting).rejects.toThrow();
  await ray.launch(1, join());
  // Its watchers ask all the while.
  const [job] = calls.filter(({ line }) => line === "POST /api/jobs/").slice(-1);
  expect(job!.json.entrypoint_label_selector).toEqual({ "ray.io/node-id": "aa" });
});

test("the end of a job, or of its node, is told with its reason", async () => {
  const ray = launcher();
  const [first, second] = [await ray.launch(0, join()), await ray.launch(1, join())];
  nodes[1]!.state = "DEAD";
  expect(await first.ended).toBe("Ray says that its node 10.0.0.2 is dead");
  status = "FAILED";
  expect(await second.ended).toMatch(/^Ray's job molt-r-node-1-\w+ is FAILED: Job was/);
});

test("a job that does not end by itself is stopped", async () => {
  const launched = await launcher().launch(0, join());
  await launched.stop();
  const lines = calls.map(({ line }) => line);
  expect(lines.slice(-2)).toEqual(["POST /api/jobs/JOB0/stop", "GET /api/jobs/JOB0"]);
});

test("a token goes along; who is refused, or gets no answer, is told what to set", async () => {
  vi.stubEnv("RAY_AUTH_TOKEN", "t0");
  await launcher().launch(0, join());
  expect(calls.at(-1)!.headers.authorization).toBe("Bearer t0");
  server.removeAllListeners("request").on("request", (_, response) => response.writeHead(401).end("no token"));
  await expect(launcher().launch(0, join())).rejects.toMatchObject({ fix: expect.stringContaining("RAY_AUTH_TOKEN") });
  const absent = new RayLauncher("http://127.0.0.1:1", ["x"], "r");
  await expect(absent.launch(0, join())).rejects.toThrow("Ray at http://127.0.0.1:1 does not answer");
});

test("a shell takes words as they are", () => {
  const words = ["a b", "it's", "$HOME", '"', "", "-n"];
  const said = execFileSync("sh", ["-c", `printf '%s\\n' ${words.map(shellWord).join(" ")}`], { encoding: "utf8" });
  expect(said).toBe(`${words.join("\n")}\n`);
});
