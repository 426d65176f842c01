import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { EngineRouter } from "../engines/router.ts";
import { ExitCode, RunnerError } from "../errors.ts";
import { bundleRoot } from "./bundle.ts";
import { AgentPool, type AgentPoolOptions, type RolloutTask } from "./pool.ts";
import type { FailedRollout, Rollout, Row } from "./types.ts";

const recipe = (path: string) => fileURLToPath(new URL(`../../../recipes/quickstart/${path}`, import.meta.url));
const limits = {
  maxLen: 64,
  maxTurns: 4,
  maxRequests: 8,
  rolloutSeconds: 20,
  turnSeconds: 10,
  toolSeconds: 10,
  rewardSeconds: 10,
  heldSeconds: 60,
};
const never = new AbortController().signal;
let folder: string;
let server: Server;
let requests: { path: string; body: { token_ids: number[]; sampling_params: { seed: number } } }[] = [];
let router: EngineRouter;
let pool: AgentPool | undefined;

/** An engine that answers every request with "1479<end>". */
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "molt-pool-"));
  const ids = [..."1479"].map((char) => char.charCodeAt(0) - 26).concat(5);
  server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    requests.push({ path: request.url!, body: JSON.parse(body) });
    const logprobs = { content: ids.map((token_id) => ({ token_id, logprob: -1 })) };
    const weight_versions = [{ version: "4", start: 0, end: ids.length }];
    response.end(JSON.stringify({ choices: [{ token_ids: ids, finish_reason: "stop", logprobs, weight_versions }] }));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});

afterEach(async () => {
  await pool?.stop();
  pool = undefined;
  requests = [];
  expect(leftovers()).toEqual([]);
});

afterAll(async () => {
  await new Promise((resolve) => server.close(resolve));
  await rm(folder, { recursive: true });
});

const leftovers = () => readdirSync(bundleRoot(tmpdir())).filter((name) => name.startsWith(".molt-agent-"));

function write(name: string, source: string): string {
  const path = join(folder, name);
  writeFileSync(path, source);
  return path;
}

async function start(agentPath: string | null, options: Partial<AgentPoolOptions> = {}): Promise<AgentPool> {
  router = new EngineRouter();
  router.version.train = 4;
  router.add(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  pool = await AgentPool.start({
    workers: 1,
    maxRestarts: 5,
    agentPath,
    tokenizerFolder: recipe("model"),
    eosTokenIds: [5],
    router,
    runId: "run",
    seed: 1,
    limits,
    ...options,
  });
  return pool;
}

const row: Row = { id: "r:1", messages: [{ role: "user", content: "sort 4917" }], label: "1479", fields: {} };

function makeTask(number: number, label: unknown = "1479"): RolloutTask {
  const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens: 8 };
  return { row: { ...row, label }, groupId: "g", rolloutId: `g/${number}`, attempt: 0, sampling };
}

const errorOf = (promise: Promise<unknown>): Promise<RunnerError> =>
  promise.then(
    () => expect.unreachable("expected an error"),
    (error) => error as RunnerError,
  );

describe("rollouts", () => {
  test("the quickstart's agent, many at once on two threads", async () => {
    await start(recipe("agent.ts"), { workers: 2 });
    const labels = Array.from({ length: 24 }, (_, i) => (i % 2 === 0 ? "1479" : "other"));
    const outcomes = await Promise.all(labels.map((label, i) => pool!.runRollout(makeTask(i, label), never)));
    const rollouts = outcomes as Rollout[];
    expect(rollouts.map(({ reward }) => reward)).toEqual(labels.map((label) => (label === "1479" ? 1 : 0)));
    expect(rollouts.map(({ rolloutId }) => rolloutId)).toEqual(labels.map((_, i) => `g/${i}`));
    const [segment] = rollouts[0]!.segments;
    expect([...segment!.tokens]).toEqual([1, 2, 89, 85, 88, 90, 6, 26, 31, 23, 29, 5, 3, 23, 26, 29, 31, 5]);
    expect([...segment!.versions].slice(-5)).toEqual([4, 4, 4, 4, 4]);
    expect(requests).toHaveLength(24);
    expect(new Set(requests.map(({ body }) => body.sampling_params.seed)).size).toBe(24);
    expect(router.alive()[0]).toMatchObject({ active: 0, served: 24 });
  });

  test("rollouts wait while the router holds, and end when they are taken back", async () => {
    await start(recipe("agent.ts"));
    router.hold();
    const controller = new AbortController();
    const waiting = pool!.runRollout(makeTask(0), never);
    const taken = pool!.runRollout(makeTask(1), controller.signal);
    await expect.poll(() => router.waitingCount).toBe(2);
    controller.abort();
    expect(await taken).toMatchObject({ reason: "aborted", rolloutId: "g/1" });
    router.release();
    expect(await waiting).toMatchObject({ reward: 1 });
    expect(router.alive()[0]).toMatchObject({ active: 0 });
  });

  test("an agent imports its own files and reads beside itself", async () => {
    write("digits.ts", "export const sorted = (text: string): string => [...text].sort().join('');");
    write("bonus.txt", "0.5");
    const path = write(
      "imports.ts",
      `import { readFileSync } from "node:fs";
       import { type Action, Env } from "molt-runner";
       import { sorted } from "./digits.ts";
       const bonus = Number(readFileSync(new URL("bonus.txt", import.meta.url), "utf8"));
       export default class extends Env {
         step({ text }: Action) { return { reward: bonus, score: Number(sorted(text)), done: true }; }
       }`,
    );
    await start(path);
    expect(await pool!.runRollout(makeTask(0), never)).toMatchObject({ reward: 0.5, score: 1479 });
  });

  test("stop ends what runs", async () => {
    await start(recipe("agent.ts"));
    router.hold();
    const waiting = pool!.runRollout(makeTask(0), never);
    await expect.poll(() => router.waitingCount).toBe(1);
    await pool!.stop();
    expect(await waiting).toMatchObject({ reason: "aborted" });
    expect(router.waitingCount).toBe(0);
  });
});

/** Asks as a program without a library does; the reward is whether the reply is the label. */
const asking = `const { OPENAI_BASE_URL, OPENAI_MODEL } = process.env;
  const row = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
  const body = JSON.stringify({ model: OPENAI_MODEL, messages: row.messages, temperature: 0.5 });
  const headers = { "content-type": "application/json" };
  const response = await fetch(OPENAI_BASE_URL + "/chat/completions", { method: "POST", headers, body });
  const text = (await response.json()).choices[0].message.content;
  console.log(JSON.stringify({ reward: text === row.label ? 1 : 0 }));`;
const asCommand = [process.execPath, "-e", `(async () => { ${asking} })()`];

describe("agents with clients of their own", () => {
  test("a class with the OpenAI SDK, whose errors point at its line", async () => {
    const path = write(
      "chat.ts",
      `import OpenAI from ${JSON.stringify(import.meta.resolve("openai"))};
import { ChatAgent, type ChatContext } from "molt-runner";
export default class extends ChatAgent {
  async run({ row, baseUrl, apiKey, model, signal }: ChatContext) {
    const client = new OpenAI({ baseURL: baseUrl, apiKey });
    const { choices } = await client.chat.completions.create({ model, messages: row.messages as never }, { signal });
    if (row.label === "throw") throw new Error("no such move");
    return { reward: choices[0]!.message.content === row.label ? 1 : 0, info: { calls: 1 } };
  }
}
`.replace("file://", ""),
    );
    await start(path, { workers: 2 });
    const outcomes = await Promise.all(
      ["1479", "x", "1479"].map((label, i) => pool!.runRollout(makeTask(i, label), never)),
    );
    expect(outcomes).toMatchObject([{ reward: 1, info: { calls: 1 }, stop: "env_done" }, { reward: 0 }, { reward: 1 }]);
    expect([...(outcomes[0] as Rollout).segments[0]!.tokens].slice(-5)).toEqual([23, 26, 29, 31, 5]);
    expect(await pool!.runRollout(makeTask(3, "throw"), never)).toMatchObject({
      reason: "agent_error",
      message: `${path}:7 the agent's run failed: no such move`,
    });
    expect(router.alive()[0]).toMatchObject({ active: 0, served: 4 });
  });

  // Case B4.
  test("a command, many at once; its temperature is not taken, which is said once", async () => {
    const warnings: string[] = [];
    const emit: AgentPoolOptions["emit"] = (event) => event.message && warnings.push(event.message);
    await start(null, { agentCommand: asCommand, workers: 2, emit });
    const labels = ["1479", "x", "1479", "y"];
    const outcomes = await Promise.all(labels.map((label, i) => pool!.runRollout(makeTask(i, label), never)));
    expect(outcomes).toMatchObject([1, 0, 1, 0].map((reward) => ({ reward, stop: "env_done" })));
    expect(warnings).toEqual(["the agent sets temperature: the recipe's sampling holds"]);
    expect(requests.map(({ body }) => body.sampling_params)).toMatchObject(labels.map(() => ({ temperature: 1 })));
  });

  // Case A7.
  test("what is said while the thread loads is heard: a template whose calls cannot be read", async () => {
    const source = `{% for message in messages %}{{ message.content }}{% if message.tool_calls %}
      ~{{ message.tool_calls[0].function.name }}~{% endif %}<end>{% endfor %}`;
    const warnings: string[] = [];
    const emit: AgentPoolOptions["emit"] = (event) => event.message && warnings.push(event.message);
    await start(null, { agentCommand: asCommand, chatTemplate: write("odd.jinja", source), workers: 2, emit });
    expect(warnings).toEqual([expect.stringMatching(/^tool calls stay text: .*~probe~/)]);
  });

  test("a command that waits for its place takes the first that is free", async () => {
    const source = asking.replace("console.log", `row.label === "stay" ? setInterval(() => {}, 1000) : console.log`);
    await start(null, { agentCommand: [process.execPath, "-e", `(async () => { ${source} })()`] });
    const controller = new AbortController();
    const staying = pool!.runRollout(makeTask(0, "stay"), controller.signal);
    const others = await Promise.all(Array.from({ length: 32 }, (_, i) => pool!.runRollout(makeTask(i + 1), never)));
    expect(new Set(others.map((outcome) => (outcome as Rollout).reward))).toEqual(new Set([1]));
    controller.abort();
    expect(await staying).toMatchObject({ reason: "aborted" });
  });

  test("a rollout that is taken back kills its command", async () => {
    const path = join(folder, "pid");
    await start(null, { agentCommand: hanging(path) });
    const controller = new AbortController();
    const outcome = pool!.runRollout(makeTask(0), controller.signal);
    await expect.poll(() => existsSync(path) && readFileSync(path, "utf8")).toMatch(/\d/);
    controller.abort();
    expect(await outcome).toMatchObject({ reason: "aborted" });
    const pid = Number(readFileSync(path, "utf8"));
    await expect.poll(() => isRunning(pid)).toBe(false);
  });

  test("a command outlives neither its time nor the pool", async () => {
    const path = join(folder, "pid-late");
    await start(null, { agentCommand: hanging(path), limits: { ...limits, rolloutSeconds: 1 } });
    expect(await pool!.runRollout(makeTask(0), never)).toMatchObject({
      reason: "agent_timeout",
      message: "the agent did not end within rollout.timeout, 1 s",
    });
    await expect.poll(() => isRunning(Number(readFileSync(path, "utf8")))).toBe(false);
  });
});

/** A program that leaves its id in a file and stays. */
function hanging(path: string): string[] {
  const source = `require("node:fs").writeFileSync(${JSON.stringify(path)}, String(process.pid));`;
  return [process.execPath, "-e", `${source} setInterval(() => {}, 1000)`];
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

describe("agents that fail", () => {
  const misbehaving = `import { execSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs"; import { type Action, Env, type Row } from "molt-runner";

export default class Misbehaving extends Env {
  step(_action: Action, row: Row) {
    if (row.label === "throw") throw new Error("no such move");
    if (row.label === "exit") process.exit(3);
    if (row.label === "once" && !existsSync(row.fields.marker as string)) {
      writeFileSync(row.fields.marker as string, "");
      process.exit(4);
    }
    if (row.label === "stray") setTimeout(() => { throw new Error("stray"); });
    if (row.label === "stray" || row.label === "hang") return new Promise<never>(() => {});
    while (row.label === "loop");
    if (row.label === "program") execSync("while [ -e " + row.fields.marker + " ]; do sleep 0.05; done");
    return { reward: 1, done: true };
  }
}
`;

  test("an error points at the user's line", async () => {
    const path = write("misbehaving.ts", misbehaving);
    await start(path);
    expect(await pool!.runRollout(makeTask(0, "throw"), never)).toMatchObject({
      reason: "agent_error",
      message: `${path}:6 the agent's step failed: no such move`,
    });
  });

  test("a thread that dies fails its rollouts, and another takes its place", async () => {
    const told: unknown[] = [];
    await start(write("misbehaving.ts", misbehaving), { emit: (event) => told.push(event) });
    const [dead, beside] = await Promise.all([
      pool!.runRollout(makeTask(0, "exit"), never),
      pool!.runRollout(makeTask(1, "hang"), never),
    ]);
    expect(dead).toMatchObject({ reason: "worker", message: "the agent's thread ended with code 3" });
    expect(beside).toMatchObject({ reason: "worker", rolloutId: "g/1" });
    expect(await pool!.runRollout(makeTask(2), never)).toMatchObject({ reward: 1 });
    expect(await pool!.runRollout(makeTask(3, "stray"), never)).toMatchObject({
      reason: "worker",
      message: "the agent's thread died: stray",
    });
    expect(await pool!.runRollout(makeTask(4), never)).toMatchObject({ reward: 1 });
    const died = (message: string) => [
      { type: "worker", worker: 0, state: "died", message },
      { type: "worker", worker: 0, state: "restarted" },
    ];
    // Three each: a rollout runs again twice.
    const ends = ["the agent's thread ended with code 3", "the agent's thread died: stray"];
    expect(told).toEqual(ends.flatMap((end) => [end, end, end].flatMap(died)));
  });

  test("a rollout whose thread died runs again, as its next attempt", async () => {
    await start(write("misbehaving.ts", misbehaving));
    const task = makeTask(0, "once");
    task.row.fields = { marker: join(folder, "died-once") };
    expect(await pool!.runRollout(task, never)).toMatchObject({
      reward: 1,
      rolloutId: "g/0",
      attempt: task.attempt + 1,
    });
  });

  // Invariant 5.
  test("an endless loop stalls its own thread alone, and ends at the deadline", async () => {
    await start(write("misbehaving.ts", misbehaving), { workers: 2, limits: { ...limits, turnSeconds: 2 } });
    const looping = pool!.runRollout(makeTask(0, "loop"), never);
    expect(await pool!.runRollout(makeTask(1), never)).toMatchObject({ reward: 1 });
    expect(await looping).toMatchObject({ reason: "worker", message: "the agent blocked its thread for 2 s" });
    expect(await pool!.runRollout(makeTask(2), never)).toMatchObject({ reward: 1 });
    expect(router.alive()[0]).toMatchObject({ active: 0 });
  });

  test("so does a program that the agent waits for, which nobody can end", async () => {
    await start(write("misbehaving.ts", misbehaving), { limits: { ...limits, turnSeconds: 1 } });
    const beside = pool!.runRollout(makeTask(0, "hang"), never);
    const task = makeTask(1, "program");
    const marker = join(folder, "program-runs");
    task.row.fields = { marker };
    writeFileSync(marker, "");
    const held = await pool!.runRollout(task, never);
    const message = "the agent blocked its thread for 1 s";
    expect([held, await beside]).toMatchObject([{ reason: "worker", message }, { reason: "worker" }]);
    expect(await pool!.runRollout(makeTask(2), never)).toMatchObject({ reward: 1 });
    expect(router.alive()[0]).toMatchObject({ active: 0 });
    rmSync(marker);
  });

  test("a loop that is held for long is said", async () => {
    const source = `import { Env } from "molt-runner";
      export default class extends Env {
        step() { for (const end = Date.now() + 2500; Date.now() < end; ); return { reward: 1, done: true }; }
      }`;
    const warnings: string[] = [];
    const emit: AgentPoolOptions["emit"] = (event) => event.message && warnings.push(event.message);
    await start(write("slow.ts", source), { emit, limits: { ...limits, turnSeconds: 5 } });
    expect(await pool!.runRollout(makeTask(0), never)).toMatchObject({ reward: 1 });
    await expect.poll(() => warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(/^agent code held its thread for \d+\.\d s; the thread's other rollouts waited$/);
  });

  test("threads are not replaced for ever", async () => {
    await start(write("misbehaving.ts", misbehaving));
    const outcomes: FailedRollout[] = [];
    for (let i = 0; i < 9; i++) outcomes.push((await pool!.runRollout(makeTask(i, "exit"), never)) as FailedRollout);
    expect(new Set(outcomes.map(({ reason }) => reason))).toEqual(new Set(["worker"]));
    expect(requests.length).toBe(6);
  });
});

describe("agents that cannot be loaded", () => {
  test("an absent file, a syntax error, a missing import", async () => {
    const absent = await errorOf(start(join(folder, "absent.ts")));
    expect(absent).toBeInstanceOf(RunnerError);
    expect(absent.format()).toContain("absent.ts train.agent_path: this file does not exist");
    const broken = await errorOf(start(write("broken.ts", "export default class {\n  step( {}\n}")));
    expect(broken.format()).toContain(`${join(folder, "broken.ts")}:3:1 Expected ")"`);
    expect(broken.exitCode).toBe(ExitCode.usage);
    const missing = await errorOf(start(write("missing.ts", 'import "no-such-package";')));
    expect(missing.format()).toContain('missing.ts:1:8 Could not resolve "no-such-package"');
  });

  test("no class, and a module that throws at its line", async () => {
    const none = await errorOf(start(write("none.ts", "export const x = 1;")));
    expect(none.format()).toContain("default export must be a class with a method step, or run\n  fix: import { Env }");
    const path = write("throws.ts", '\nthrow new Error("no key");');
    expect((await errorOf(start(path))).message).toBe(`the agent failed while loading at ${path}:2: no key`);
  });

  test("a tokenizer that is not there", async () => {
    const error = await errorOf(start(recipe("agent.ts"), { tokenizerFolder: folder }));
    expect(error.format()).toContain("this folder has no tokenizer.json");
  });
});
