import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, expect, test } from "vitest";
import type { Group, Rollout } from "../agents/types.ts";
import { type Prompt, PromptQueue } from "../data/order.ts";
import { EventLog } from "../telemetry/log.ts";
import { type LoopServices, TrainingLoop } from "./loop.ts";

const folder = mkdtempSync(join(tmpdir(), "molt-refill-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** Prompt p3 has signal iff `passes(3)`; what it is is its one reward. */
function rolloutOf({ promptId, attempt }: Prompt, groupId: string, rolloutId: string): Rollout {
  const timings = { startedAt: 0, seconds: 0, modelSeconds: 0 };
  const reward = Number(promptId.slice(1));
  const ids = { runId: "r", promptId, groupId, rolloutId, attempt };
  return { ...ids, segments: [], reward, score: reward, info: {}, stop: "stop", timings };
}

interface Options {
  prompts: number;
  budget: number;
  steps?: number;
  bySolveRate?: boolean;
}

/** Trains every batch; returns batches by prompt, and the log. */
async function run(passes: (prompt: number) => boolean, options: Options) {
  const batches: string[][] = [];
  const services: LoopServices = {
    rollout: async (prompt, groupId, rolloutId) => rolloutOf(prompt, groupId, rolloutId),
    train: async (groups) => {
      batches.push(groups.map(({ promptId }) => promptId));
      return { metrics: {}, updates: 1, dropped: new Map(), skipped: null };
    },
    sync: async () => ({ seconds: 0, checksum: "c", engines: 1 }),
    evaluate: null,
    storeRollouts: async () => {},
    checkpoint: async () => {},
    died: new Promise<never>(() => {}),
  };
  const promptIds = Array.from({ length: options.prompts }, (_, index) => `p${index}`);
  const queue = new PromptQueue({ promptIds, seed: 7, epochs: 1, maxAttempts: 3, bySolveRate: options.bySolveRate });
  const log = new EventLog(join(mkdtempSync(join(folder, "run-")), "events.ndjson"));
  const reasonOf = ({ promptId }: Group) => (passes(Number(promptId.slice(1))) ? null : "no_signal");
  const amounts = { steps: options.steps ?? null, batchSize: 4, samplesPerPrompt: 2, minGroup: 2, maxStaleness: 0 };
  const cadence = { groupTimeout: 20, evalSteps: -1, evalAtStart: false, evalApart: false, saveSteps: -1 };
  const rest = { maxInFlight: null, stopAfterSkipped: 3, deterministic: false };
  const all = { ...amounts, ...cadence, ...rest, refill: { reasonOf, budget: options.budget } };
  await new TrainingLoop(all, services, queue, log, null).run(new AbortController().signal);
  return { batches, events: [...log.read()], queue };
}

test("groups without signal are replaced, each prompt consumed once, batches full while prompts last", async () => {
  const property = fc.asyncProperty(fc.array(fc.boolean(), { minLength: 1, maxLength: 24 }), async (outcomes) => {
    const { batches, events } = await run((prompt) => outcomes[prompt]!, { prompts: outcomes.length, budget: 100 });
    const passing = outcomes.flatMap((passes, prompt) => (passes ? [`p${prompt}`] : []));
    expect(batches.flat().sort()).toEqual(passing.sort());
    expect(batches.slice(0, -1).every((batch) => batch.length === 4)).toBe(true);
    const groups = events.filter((event) => event.type === "group");
    expect(groups.map(({ promptId }) => promptId).sort()).toEqual(outcomes.map((_, prompt) => `p${prompt}`).sort());
    const dropped = groups.filter(({ outcome }) => outcome === "dropped");
    expect(dropped.every((event) => "reason" in event && event.reason === "no_signal" && !event.requeued)).toBe(true);
    const counted = events.filter((event) => event.type === "step").map(({ metrics }) => metrics.groups_refilled!);
    expect(counted.reduce((sum, count) => sum + count, 0)).toBeLessThanOrEqual(dropped.length);
  });
  await fc.assert(property, { numRuns: 25 });
});

test("past its budget a step takes what comes, and says how the replaced groups did", async () => {
  const { batches, events } = await run(() => false, { prompts: 40, budget: 5, steps: 2 });
  expect(batches.map((batch) => batch.length)).toEqual([4, 4]);
  const steps = events.filter((event) => event.type === "step");
  expect(steps.map(({ metrics }) => metrics.groups_refilled)).toEqual([5, 5]);
  const [warning] = events.filter((event) => event.type === "warning");
  const said = "algo.refill_budget is used up: 5 groups without signal were replaced; mean reward by group: ";
  expect(warning!.message.slice(0, said.length)).toBe(said);
  expect(warning!.message.slice(said.length)).toMatch(/^(\d+\.00 x 1(, )?){5}$/);
});

test("of a curriculum, each prompt's last mean score is kept, in [0, 1], trained or replaced", async () => {
  const { batches, queue } = await run((prompt) => prompt !== 0, { prompts: 8, budget: 8, bySolveRate: true });
  expect(batches.flat().sort()).toEqual(["p1", "p2", "p3", "p4", "p5", "p6", "p7"]);
  // Prompt n scores n: 0 of the one replaced, and 1 of all that are better.
  expect([...queue.serialize().solveRates!]).toEqual([0, 1, 1, 1, 1, 1, 1, 1]);
});
