/** Invariants 5 and 8 over every fault of an engine: bounded failure, versions agree, no sentinel becomes data. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import fc from "fast-check";
import { describe, expect, it, onTestFinished } from "vitest";
import { RolloutFailure, settle } from "../agents/rollout.ts";
import { PromptQueue } from "../data/order.ts";
import { type LoopServices, TrainingLoop } from "../loop/loop.ts";
import { EventLog } from "../telemetry/log.ts";
import { expectRight, expectServing, faults, type Setup, sample, setUp } from "./fixtures/faulty-engines.ts";

const ids = Array.from({ length: 9 }, (_, id) => id);
const patience = { turnSeconds: 1.5 };

/** All at the trainer's version, whose weights are called after it. */
async function publish({ ranks, sync }: Setup, version: number, options: Parameters<Setup["sync"]>[1] = {}) {
  ranks.salt = version;
  ranks.claims = `salt-${version}`;
  return sync(version, options);
}

describe("an answer to a model call", () => {
  // case D3, invariant 8
  it.each(faults)("%s: another engine answers; where none is, the call fails and is no data", async (fault) => {
    const setup = await setUp(3);
    await publish(setup, 1);
    let met = 0;
    const generates = (path: string) => path === "/inference/v1/generate" && ++met > 0;
    const [, faulty] = setup.engines;
    faulty!.fault = (path) => (generates(path) ? fault : null);
    const replies = await Promise.all(ids.map((id) => sample(setup, id, patience)));
    for (const id of ids) expectRight(replies[id]!, id, true);
    expect(met).toBeGreaterThan(0);
    if (fault !== "slow") {
      for (const engine of setup.engines) engine.fault = faulty!.fault;
      const error = await sample(setup, 0, patience).catch((failure) => failure);
      expect(error).toBeInstanceOf(RolloutFailure);
      expect(error.reason).toBe("engine");
      expect(error.message).toMatch(/engine http:/);
    }
    // Every lease is back, and the engines go on.
    await setup.fleet.router.drained(1);
    for (const engine of setup.engines) engine.fault = () => null;
    await publish(setup, 2);
    expect(setup.fleet.router.alive()).toHaveLength(3);
    await expectServing(setup, 2, 2);
  });

  it("by engines that all refuse stops the run, with the reason", async () => {
    const setup = await setUp(2);
    for (const engine of setup.engines) engine.fault = () => "error";
    const directory = mkdtempSync(join(tmpdir(), "refused-"));
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
    const services = {
      rollout: (prompt, groupId, rolloutId) => {
        const task = { row: { id: prompt.promptId }, groupId, rolloutId, attempt: prompt.attempt };
        return settle(task as never, "r", async () => ({ ...(await sample(setup, 1)), segments: [] }) as never);
      },
      train: () => Promise.reject(new Error("nothing to train")),
      sync: async () => ({ seconds: 0, checksum: "c", engines: 2 }),
      evaluate: null,
      storeRollouts: async () => {},
      checkpoint: async () => {},
      died: new Promise<never>(() => {}),
    } satisfies LoopServices;
    const amounts = { steps: null, batchSize: 2, samplesPerPrompt: 2, minGroup: 2, maxStaleness: 1, maxInFlight: null };
    const cadence = { groupTimeout: 30, evalSteps: -1, evalAtStart: false, evalApart: false, saveSteps: -1 };
    const options = { ...amounts, ...cadence, stopAfterSkipped: 3, deterministic: false };
    const promptIds = Array.from({ length: 9 }, (_, index) => `p${index}`);
    const prompts = new PromptQueue({ promptIds, seed: 1, epochs: 1, maxAttempts: 2 });
    const loop = new TrainingLoop(options, services, prompts, new EventLog(join(directory, "events.ndjson")), null);
    const reason = /8 groups in a row were dropped \(engine: 8\); the last one: engine http:.* HTTP 500: injected/;
    await expect(loop.run(new AbortController().signal)).rejects.toThrow(reason);
  });
});

describe("a weight sync", () => {
  const routes = ["/pause", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"] as const;
  const later = ["/finish_weight_update", "/weight_info", "/resume", "/abort_requests"] as const;

  // case D3, invariant 5
  it("over an engine with any fault, at any of its calls, leaves none paused or at another version", async () => {
    const scenario = fc.record({
      route: fc.constantFrom(...routes, ...later),
      fault: fc.constantFrom("silent", "error", "dies", "stalls", "is cut off", "is empty", "slow"),
      times: fc.constantFrom(1, Infinity),
      inFlight: fc.constantFrom("resume", "keep", "wait"),
    } as const);
    await fc.assert(
      fc.asyncProperty(scenario, async ({ route, fault, times, inFlight }) => {
        const setup = await setUp(3, 0, 1);
        await publish(setup, 1, { inFlight });
        for (const { sampler } of setup.engines) sampler.onStep = () => sleep(2);
        let met = 0;
        setup.engines[1]!.fault = (path) => (path === route && met++ < times ? fault : null);
        const calling = Promise.all(ids.map((id) => sample(setup, id, patience)));
        await sleep(10);
        await publish(setup, 2, { inFlight });
        const replies = await calling;
        for (const id of ids) expectRight(replies[id]!, id, inFlight === "resume");
        expect(setup.fleet.router.alive().length).toBeGreaterThanOrEqual(2);
        await expectServing(setup, 2, 2);
      }),
      { numRuns: 12 },
    );
  }, 120_000);
});
