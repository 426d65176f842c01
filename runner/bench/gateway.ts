/** What the gateway costs: latency that it adds, processor time and memory of many rollouts, long conversations. */
import { type ChildProcess, fork } from "node:child_process";
import { cpus } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Pool } from "undici";
import { withDeadline } from "../src/deadline.ts";
import type { Measure, SideRequest } from "./gateway-side.ts";

type WithoutId<T> = T extends unknown ? Omit<T, "id"> : never;

const deadlineSeconds = 300;

/** The measured process. */
class Side {
  private readonly child: ChildProcess;
  private readonly waiting = new Map<number, (answer: never) => void>();
  private asked = 0;

  constructor() {
    const file = fileURLToPath(new URL("gateway-side.js", import.meta.url));
    this.child = fork(file, { execArgv: ["--expose-gc", "--enable-source-maps"] });
    this.child.on("message", ({ id, answer }: { id: number; answer: never }) => {
      this.waiting.get(id)?.(answer);
      this.waiting.delete(id);
    });
    this.child.on("exit", (code, signal) => {
      if (code !== 0) throw new Error(`the measured process ended with ${code ?? signal}`);
    });
  }

  ask<T>(request: WithoutId<SideRequest>): Promise<{ id: number; answer: T }> {
    const id = this.asked++;
    const answer = new Promise<T>((resolve) => this.waiting.set(id, resolve));
    this.child.send({ id, ...request });
    return withDeadline(answer, deadlineSeconds, request.kind).then((got) => ({ id, answer: got }));
  }

  async measure(): Promise<Measure> {
    return (await this.ask<Measure>({ kind: "measure" })).answer;
  }

  end(): void {
    this.child.disconnect();
  }
}

/** A conversation as an agent keeps it: each turn sends all of it. */
class Conversation {
  private readonly side: Side;
  private readonly pool: Pool;
  private readonly path: string;
  private readonly id: number;
  private readonly messages: object[] = [{ role: "system", content: "You are an agent that looks into files." }];

  private constructor(side: Side, pool: Pool, id: number, url: string) {
    this.side = side;
    this.pool = pool;
    this.id = id;
    this.path = new URL(url).pathname;
  }

  static async open(side: Side, pools: (origin: string) => Pool, delayMs = 0): Promise<Conversation> {
    const { id, answer } = await side.ask<string>({ kind: "open", delayMs });
    return new Conversation(side, pools(new URL(answer).origin), id, answer);
  }

  /** Milliseconds until the whole answer is there. */
  async turn(): Promise<number> {
    this.messages.push({ role: "user", content: "The tool says: 3 files, 120 lines. Where is the answer?" });
    const started = performance.now();
    const { statusCode, body } = await this.pool.request({
      method: "POST",
      path: `${this.path}/chat/completions`,
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "policy", messages: this.messages }),
    });
    const answer = (await body.json()) as { choices: [{ message: object }] };
    const took = performance.now() - started;
    if (statusCode !== 200) throw new Error(JSON.stringify(answer));
    this.messages.push(answer.choices[0].message);
    return took;
  }

  async close(): Promise<number> {
    return (await this.side.ask<number>({ kind: "close", of: this.id })).answer;
  }
}

function many<T>(count: number, make: (index: number) => Promise<T>): Promise<T[]> {
  return Promise.all(Array.from({ length: count }, (_, index) => make(index)));
}

const at = (sorted: number[], part: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))]!;
const report = (name: string, ...values: string[]) => console.log(`${name.padEnd(44)} ${values.join("  ")}`);

/** The engine takes a fixed time; sessions begin spread over it, as rollouts do. */
async function addedLatency(side: Side, pools: (origin: string) => Pool, sessions: number, rounds: number) {
  const [delayMs, turns] = [sessions === 1 ? 20 : 1000, 4];
  const run = async (index: number) => {
    const conversation = await Conversation.open(side, pools, delayMs);
    await sleep((index / sessions) * delayMs);
    const took: number[] = [];
    for (let turn = 0; turn < turns; turn++) took.push((await conversation.turn()) - delayMs);
    await conversation.close();
    return took;
  };
  await many(sessions, run);
  const before = await side.measure();
  const all: number[] = [];
  for (let round = 0; round < rounds; round++) all.push(...(await many(sessions, run)).flat());
  all.sort((a, b) => a - b);
  const cpu = ((await side.measure()).cpuMs - before.cpuMs) / all.length;
  const aim = sessions === 64 ? "(aim: < 5 ms)" : "";
  const values = [`median ${at(all, 0.5).toFixed(2)} ms`, `p99 ${at(all, 0.99).toFixed(2)} ms`];
  report(`latency added, ${sessions} sessions`, ...values, `cpu ${cpu.toFixed(2)} ms a call`, aim);
}

async function manyRollouts(side: Side, pools: (origin: string) => Pool, rollouts: number, turns: number) {
  for (let round = 1; round <= 2; round++) {
    const before = await side.measure();
    const started = performance.now();
    const conversations = await many(rollouts, () => Conversation.open(side, pools));
    await Promise.all(
      conversations.map(async (conversation) => {
        for (let turn = 0; turn < turns; turn++) await conversation.turn();
      }),
    );
    const full = await side.measure();
    const tokens = (await Promise.all(conversations.map((one) => one.close()))).reduce((sum, one) => sum + one, 0);
    const seconds = (performance.now() - started) / 1000;
    const after = await side.measure();
    const cpu = (after.cpuMs - before.cpuMs) / (rollouts * turns);
    report(
      `${rollouts} rollouts of ${turns} turns, round ${round}`,
      `${seconds.toFixed(1)} s, ${(tokens / 1e6).toFixed(1)} M tokens`,
      `cpu ${cpu.toFixed(2)} ms a call (aim: < 1 ms)`,
      `heap ${[before, full, after].map(({ heapMb }) => heapMb.toFixed(0)).join(" > ")} MB`,
      `resident ${[before, full, after].map(({ residentMb }) => residentMb.toFixed(0)).join(" > ")} MB`,
    );
  }
}

/** Processor time of single turns is too short to see: many sessions go through the same turn. */
async function longConversations(side: Side, pools: (origin: string) => Pool) {
  const [sessions, width] = [50, 4];
  const conversations = await many(sessions, () => Conversation.open(side, pools));
  const cpuAt = async (from: number, to: number) => {
    const before = await side.measure();
    for (let turn = from; turn < to; turn++) for (const conversation of conversations) await conversation.turn();
    return ((await side.measure()).cpuMs - before.cpuMs) / ((to - from) * sessions);
  };
  await cpuAt(0, 8 - width);
  const early = await cpuAt(8 - width, 8 + width);
  await cpuAt(8 + width, 128 - width);
  const late = await cpuAt(128 - width, 128 + width);
  await Promise.all(conversations.map((one) => one.close()));
  const values = [`${early.toFixed(2)} ms`, `${late.toFixed(2)} ms`, `${(late / early).toFixed(2)} times`];
  report("cpu of a turn at turn 8, at turn 128", ...values, "(aim: 1.5 times)");
}

export async function benchGateway(words: string[]): Promise<void> {
  const rollouts = words.includes("--short") ? 100 : 2000;
  console.log(`Node ${process.version}, ${cpus().length} x ${cpus()[0]?.model}`);
  const side = new Side();
  let pool: Pool | undefined;
  const pools = (origin: string) => {
    pool ??= new Pool(origin, { connections: rollouts });
    return pool;
  };
  try {
    for (const [sessions, rounds] of [
      [1, 50],
      [64, 4],
      [512, 1],
    ] as const) {
      if (sessions <= rollouts) await addedLatency(side, pools, sessions, rounds);
    }
    await manyRollouts(side, pools, rollouts, 10);
    await longConversations(side, pools);
  } finally {
    await pool?.destroy();
    side.end();
  }
}
