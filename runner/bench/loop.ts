/**
 * `npm run bench:loop`: what scheduling costs. The real loop, buffer, router and log run 4,096 rollouts at a time, of
 * three model calls each, over 64 engines that are timers: processor time a rollout, how late a call's end is noticed
 * and the next granted, memory.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Group } from "../src/agents/types.ts";
import { PromptQueue } from "../src/data/order.ts";
import { EngineRouter } from "../src/engines/router.ts";
import { type LoopServices, TrainingLoop } from "../src/loop/loop.ts";
import { EventLog } from "../src/telemetry/log.ts";
import { cpuSeconds, heapMiB, percentile } from "./measure.ts";
import { rolloutOf } from "./rollouts.ts";

const [engines, calls, size, batchSize, maxStaleness, steps] = [64, 3, 8, 128, 3, 40];
const concurrent = size * batchSize * (maxStaleness + 1);

const router = new EngineRouter();
for (let engine = 0; engine < engines; engine++) router.add(`http://127.0.0.1:${engine}`);
const lateness: number[] = [];
const granted: number[] = [];
let running = 0;
let mostRunning = 0;

/** A call takes 200 to 600 ms, by its number, whatever else goes on. */
async function modelCall(sessionId: string, number: number): Promise<void> {
  const askedAt = performance.now();
  const lease = await router.acquire(sessionId, 60);
  const grantedAt = performance.now();
  granted.push(grantedAt - askedAt);
  const ms = 200 + ((number * 7919) % 400);
  await sleep(ms);
  lateness.push(performance.now() - grantedAt - ms);
  lease.release();
}

let sampled = 0;
const services: LoopServices = {
  rollout: async (_prompt, groupId, rolloutId) => {
    mostRunning = Math.max(mostRunning, ++running);
    for (let call = 0; call < calls; call++) await modelCall(rolloutId, sampled + call);
    running--;
    sampled++;
    return rolloutOf(groupId, Number(rolloutId.slice(rolloutId.lastIndexOf("/") + 1)), 96, calls, version);
  },
  train: async (groups: Group[]) => {
    await sleep(100);
    return { metrics: { rows: groups.length * size }, updates: 1, dropped: new Map(), skipped: null };
  },
  // Requests that run go on; what comes meanwhile waits.
  sync: async (next) => {
    router.hold();
    await sleep(20);
    version = next;
    router.release();
    return { seconds: 0.02, checksum: "c", engines };
  },
  evaluate: null,
  storeRollouts: async () => {},
  checkpoint: async () => {},
  died: new Promise<never>(() => {}),
};
let version = 0;

const directory = mkdtempSync(join(tmpdir(), "molt-bench-loop-"));
try {
  const log = new EventLog(join(directory, "events.ndjson"));
  const promptIds = Array.from({ length: batchSize * steps }, (_, index) => `p${index}`);
  const prompts = new PromptQueue({ promptIds, seed: 1, epochs: 1, maxAttempts: 1 });
  const amounts = { steps, batchSize, samplesPerPrompt: size, minGroup: size, maxStaleness, maxInFlight: null };
  const cadence = { groupTimeout: 120, evalSteps: -1, evalAtStart: false, evalApart: false, saveSteps: -1 };
  const options = { ...amounts, ...cadence, stopAfterSkipped: 1, deterministic: false };
  const [heapBefore, cpuBefore, startedAt] = [heapMiB(), cpuSeconds(), performance.now()];
  await new TrainingLoop(options, services, prompts, log, null).run(new AbortController().signal);
  const micros = ((cpuSeconds() - cpuBefore) * 1e6) / sampled;
  const wall = ((performance.now() - startedAt) / 1000).toFixed(1);
  const tail = (values: number[]) =>
    [0.5, 0.99].map((share) => `${percentile(values, share).toFixed(1)} ms`).join(", 99 of 100 within ");
  console.log(
    `${sampled} rollouts of ${calls} calls, ${mostRunning} of ${concurrent} at a time on ${engines} engines: ${wall} s`,
  );
  console.log(`processor time: ${micros.toFixed(0)} µs a rollout`);
  console.log(`a call that ended is noticed after ${tail(lateness)}; the next is granted after ${tail(granted)}`);
  log.flush();
  console.log(`memory in use: ${heapBefore.toFixed(0)} MiB before, ${heapMiB().toFixed(0)} MiB after`);
} finally {
  rmSync(directory, { recursive: true, force: true });
}
