/**
 * `npm run bench:telemetry`: what a run's telemetry costs. An event, of a run's usual mix, with the fold and the health
 * rules behind the log; all of a step's telemetry, rollouts stored, beside the step's time; the memory of an hour of
 * 1,000 events a second, replayed as fast as it goes.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate as breathe } from "node:timers/promises";
import type { Recipe } from "../src/recipe/schema.ts";
import { funnelOf } from "../src/telemetry/funnel.ts";
import { watchHealth } from "../src/telemetry/health/watch.ts";
import { EventLog } from "../src/telemetry/log.ts";
import { RolloutStore } from "../src/telemetry/shards.ts";
import { StepClock } from "../src/telemetry/step-time.ts";
import { cpuSeconds, heapMiB } from "./measure.ts";
import { groupOf } from "./rollouts.ts";

const recipe = { train: { max_staleness: 1 } } as Recipe;
const metrics = Object.fromEntries(
  ["reward", "reward_std", "entropy", "grad_norm", "turns", "logprob_gap_mean", "logprob_gap_max", "policy_kl"]
    .concat(["ratio_mean", "advantage_mean", "policy_loss", "clip_ratio", "rows", "tokens_trained", "live_groups"])
    .map((name, index) => [name, 0.5 + index / 7]),
);

function logTo(path: string): EventLog {
  const log = new EventLog(path);
  watchHealth(log, recipe);
  return log;
}

/** A step of so many groups without rollouts of their own: `groups` + 3 events. */
function emitStep(log: EventLog, step: number, groups: number, funnel: ReturnType<typeof funnelOf>): void {
  for (let index = 0; index < groups; index++) {
    const ids = { groupId: `prompts:${step * groups + index}@0.0`, promptId: `prompts:${index}`, epoch: 0, attempt: 0 };
    log.emit({ type: "group", ...ids, outcome: "trained", step, reward: (index % 9) / 8 });
  }
  log.emit({ type: "funnel", step, ...funnel });
  log.emit({ type: "sync", policyVersion: step, seconds: 0.1, checksum: "0123456789abcdef", engines: 1 });
  log.emit({ type: "step", step, policyVersion: step, metrics, seconds: { step: 3, wait: 1, train: 1, generate: 3 } });
}

async function costOfAnEvent(directory: string): Promise<void> {
  const log = logTo(join(directory, "cost.ndjson"));
  const funnel = funnelOf([{ group: groupOf("p@0.0", 8, 64, 1) }]);
  const [steps, groups] = [3000, 32];
  const begun = cpuSeconds();
  for (let step = 1; step <= steps; step++) {
    emitStep(log, step, groups, funnel);
    await breathe();
  }
  log.flush();
  const micros = ((cpuSeconds() - begun) * 1e6) / (steps * (groups + 3));
  console.log(`an event: ${micros.toFixed(1)} µs of processor time: written, folded, seen by the health rules`);
}

/** `stepSeconds`: how long such a step takes. */
async function shareOfAStep(directory: string, shape: Shape): Promise<void> {
  const { name, groups, size, tokens, turns, stepSeconds } = shape;
  const log = logTo(join(directory, `${name}.ndjson`));
  const store = new RolloutStore(directory, console.error);
  const records = Array.from({ length: groups }, (_, index) => ({
    group: groupOf(`p${index}@0.0`, size, tokens, turns),
  }));
  const clock = new StepClock();
  const [warm, measured] = [20, 100];
  let begun = 0;
  for (let step = 1; step <= warm + measured; step++) {
    if (step === warm + 1) begun = cpuSeconds();
    const funnel = funnelOf(records);
    clock.take(records);
    emitStep(log, step, groups, funnel);
    await store.add(step, records);
    log.flush();
    await store.flush();
  }
  const cost = (cpuSeconds() - begun) / measured;
  const share = ((100 * cost) / stepSeconds).toFixed(2);
  const batch = `${groups} x ${size} rollouts of ${tokens} tokens`;
  console.log(`a step of ${name} (${batch}): ${(cost * 1000).toFixed(1)} ms, ${share}% of ${stepSeconds} s`);
}

interface Shape {
  name: string;
  groups: number;
  size: number;
  tokens: number;
  turns: number;
  stepSeconds: number;
}

/** One step every two seconds, so nearly all events are of groups. The file takes all and keeps nothing. */
async function anHour(perSecond: number): Promise<void> {
  const log = logTo("/dev/null");
  const funnel = funnelOf([{ group: groupOf("p@0.0", 8, 64, 1) }]);
  const begun = performance.now();
  const heap: string[] = [];
  for (let step = 1; step <= 1800; step++) {
    emitStep(log, step, 2 * perSecond - 3, funnel);
    log.flush();
    if (step % 200 === 0) heap.push(heapMiB().toFixed(1));
    await breathe();
  }
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  console.log(`an hour of ${perSecond} events a second, in ${seconds} s: ${heap.join(", ")} MiB in use`);
}

const directory = mkdtempSync(join(tmpdir(), "molt-bench-telemetry-"));
try {
  await costOfAnEvent(directory);
  // Its step as README.md shows the run: 37.2 s for 200 of them.
  await shareOfAStep(directory, { name: "quickstart", groups: 32, size: 8, tokens: 16, turns: 1, stepSeconds: 0.186 });
  // Thousands of tokens a second and trainer are much; of so many, a minute is little.
  await shareOfAStep(directory, { name: "long", groups: 64, size: 8, tokens: 8192, turns: 16, stepSeconds: 60 });
  await anHour(1000);
} finally {
  rmSync(directory, { recursive: true, force: true });
}
