import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { FailedRollout, Group, Rollout } from "../agents/types.ts";
import { epochOrder, type Prompt, PromptQueue, type PromptQueueState } from "../data/order.ts";
import { foldRun, type RunState } from "../telemetry/fold.ts";
import { EventLog, readEvents } from "../telemetry/log.ts";
import { type LoopOptions, type LoopProgress, type LoopServices, TrainingLoop } from "./loop.ts";

const never = new Promise<never>(() => {});

function rolloutOf(prompt: Prompt, groupId: string, rolloutId: string, version: number): Rollout {
  const { promptId, attempt } = prompt;
  const segment = {
    tokens: Int32Array.of(1, 2),
    mask: Uint8Array.of(0, 1),
    logprobs: Float32Array.of(Number.NaN, -0.5),
    versions: Int32Array.of(-1, version),
    turns: [],
  };
  const timings = { startedAt: 0, seconds: 0, modelSeconds: 0 };
  const base = { runId: "r", promptId, groupId, rolloutId, attempt, info: {}, timings };
  return { ...base, segments: [segment], reward: 1, score: 1, stop: "stop" };
}

function failureOf(prompt: Prompt, groupId: string, rolloutId: string, reason: string): FailedRollout {
  const { promptId, attempt } = prompt;
  return { runId: "r", promptId, groupId, rolloutId, attempt, reason, message: `${reason} of ${rolloutId}` };
}

const defaults: LoopOptions = {
  steps: null,
  batchSize: 2,
  samplesPerPrompt: 2,
  minGroup: 2,
  maxStaleness: 1,
  maxInFlight: null,
  groupTimeout: 20,
  evalSteps: -1,
  evalAtStart: false,
  saveSteps: 1,
  stopAfterSkipped: 3,
};

/** A run whose rollouts, trainer and engines are scripts. */
class StubRun {
  readonly options: LoopOptions;
  readonly log: EventLog;
  readonly path: string;
  readonly promptIds: string[];
  epochs = 1;
  maxAttempts = 3;
  engineVersion = 0;
  trainerVersion = 0;
  syncedWhileEvaluating = false;
  evaluating = 0;
  saved: { progress: LoopProgress; prompts: PromptQueueState } | null = null;
  readonly services: LoopServices;

  constructor(directory: string, prompts: number, options: Partial<LoopOptions> = {}) {
    this.options = { ...defaults, ...options };
    this.path = join(directory, "events.ndjson");
    this.log = new EventLog(this.path);
    this.promptIds = Array.from({ length: prompts }, (_, index) => `p${index}`);
    this.services = {
      rollout: async (prompt, groupId, rolloutId) => rolloutOf(prompt, groupId, rolloutId, this.engineVersion),
      train: async () => {
        this.trainerVersion += 1;
        return { metrics: { reward: 1 }, updates: 1, dropped: new Map(), skipped: null };
      },
      sync: async (version) => {
        this.syncedWhileEvaluating ||= this.evaluating > 0;
        this.engineVersion = version;
        return { seconds: 0, checksum: "c", engines: 1 };
      },
      evaluate: null,
      storeRollouts: async () => {},
      checkpoint: async (progress) => {
        this.saved = structuredClone({ progress, prompts: this.queue!.serialize() });
      },
      died: never,
    };
  }

  private queue: PromptQueue | null = null;
  private started = false;

  async run(interrupted = new AbortController().signal): Promise<"completed" | "interrupted"> {
    const { promptIds, epochs, maxAttempts } = this;
    this.queue = new PromptQueue({ promptIds, seed: 7, epochs, maxAttempts });
    if (this.started) {
      this.log.emit({ type: "resumed", fromStep: this.saved?.progress.step ?? 0, totalSteps: this.options.steps });
      this.engineVersion = this.saved?.progress.policyVersion ?? 0;
    }
    this.started = true;
    if (this.saved) this.queue.restore(this.saved.prompts);
    return new TrainingLoop(this.options, this.services, this.queue, this.log, this.saved?.progress ?? null).run(
      interrupted,
    );
  }

  get state(): RunState {
    return foldRun(readEvents(this.path));
  }

  /** How often each prompt was consumed, by epoch and id. */
  consumed(): Record<string, number> {
    const counts: Record<string, number> = {};
    for (const { epoch, promptId, groupId, outcome, requeued } of this.state.groups) {
      expect(groupId).toContain(`${promptId}@${epoch}.`);
      if (outcome === "trained" || !requeued)
        counts[`${epoch}:${promptId}`] = (counts[`${epoch}:${promptId}`] ?? 0) + 1;
    }
    return counts;
  }
}

describe("the loop", () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "loop-"));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const onceEach = (promptIds: string[], epochs: number) =>
    Object.fromEntries(Array.from({ length: epochs }, (_, e) => promptIds.map((id) => [`${e}:${id}`, 1])).flat());

  it("consumes every prompt once an epoch, the remainder as a short batch", async () => {
    const run = new StubRun(directory, 5, { batchSize: 2 });
    run.epochs = 2;
    expect(await run.run()).toBe("completed");
    expect(run.consumed()).toEqual(onceEach(run.promptIds, 2));
    expect(run.state.step).toBe(5);
  });

  it("ends at its steps without starting what nobody would train", async () => {
    const run = new StubRun(directory, 40, { steps: 3 });
    let started = 0;
    const { rollout } = run.services;
    run.services.rollout = (...args) => {
      started += 1;
      return rollout(...args);
    };
    await run.run();
    expect(run.state.step).toBe(3);
    expect(started).toBe(3 * 2 * 2); // steps x groups x samples
  });

  // case D1: two hang, one raises
  it("completes although rollouts hang and raise: dropped by reason, tried again, counted", async () => {
    const run = new StubRun(directory, 10, { groupTimeout: 0.2, maxStaleness: 0 });
    const { rollout } = run.services;
    run.services.rollout = (prompt, groupId, rolloutId, signal) => {
      if (prompt.attempt === 0 && (prompt.index === 2 || prompt.index === 3)) return never;
      if (prompt.attempt === 0 && prompt.index === 5) {
        return Promise.resolve(failureOf(prompt, groupId, rolloutId, "agent_error"));
      }
      return rollout(prompt, groupId, rolloutId, signal);
    };
    expect(await run.run()).toBe("completed");
    expect(run.consumed()).toEqual(onceEach(run.promptIds, 1));
    const dropped = run.state.groups.filter((group) => group.outcome === "dropped");
    expect(dropped.map((group) => [group.promptId, group.reason, group.requeued]).sort()).toEqual([
      ["p2", "stale", true],
      ["p3", "stale", true],
      ["p5", "agent_error", true],
    ]);
  });

  it("a prompt that fails every time is dropped for good; when all do, the run stops and says why", async () => {
    const one = new StubRun(directory, 10);
    const { rollout } = one.services;
    one.services.rollout = (prompt, groupId, rolloutId, signal) =>
      prompt.index === 4
        ? Promise.resolve(failureOf(prompt, groupId, rolloutId, "grader"))
        : rollout(prompt, groupId, rolloutId, signal);
    await one.run();
    expect(one.consumed()).toEqual(onceEach(one.promptIds, 1));
    expect(one.state.groups.filter((group) => group.promptId === "p4").map((group) => group.requeued)).toEqual([
      true,
      true,
      false,
    ]);
    const all = new StubRun(directory, 10);
    all.services.rollout = async (prompt, groupId, rolloutId) => failureOf(prompt, groupId, rolloutId, "engine");
    await expect(all.run()).rejects.toThrow("8 groups in a row were dropped (engine: 8); the last one: engine of");
  });

  // case C8, the loop's half: a step that changed nothing publishes no version
  it("a skipped step consumes its batch, publishes nothing, and repeated it stops the run", async () => {
    const run = new StubRun(directory, 20);
    let calls = 0;
    run.services.train = async (groups) => {
      calls += 1;
      if (calls === 2) return { metrics: {}, updates: 1, dropped: new Map(), skipped: null };
      const dropped = new Map(groups.map(({ groupId }) => [groupId, "non_finite_gradient"]));
      return { metrics: {}, updates: 0, dropped, skipped: { reason: "non_finite_gradient", detail: "NaN in q_proj" } };
    };
    await expect(run.run()).rejects.toThrow("3 steps in a row were skipped: NaN in q_proj");
    expect(calls).toBe(5);
    expect(run.engineVersion).toBe(1);
    expect(run.state.skipped.map((event) => event.step)).toEqual([1, 3, 4, 5]);
    expect(run.state.groups.filter(({ outcome }) => outcome === "trained")).toHaveLength(2);
    const dropped = run.state.groups.filter(({ outcome }) => outcome === "dropped");
    expect(dropped.map(({ reason, requeued }) => [reason, requeued])).toEqual(
      Array(8).fill(["non_finite_gradient", false]),
    );
  });

  // case C8: the second update of a batch is not finite, but the first has changed the weights
  it("a step that broke off after an update publishes what it has; repeated it stops the run too", async () => {
    const run = new StubRun(directory, 20);
    const skipped = { reason: "non_finite_gradient", detail: "NaN in q_proj" } as const;
    run.services.train = async () => ({ metrics: { reward: 1 }, updates: 1, dropped: new Map(), skipped });
    await expect(run.run()).rejects.toThrow("3 steps in a row were skipped: NaN in q_proj");
    expect(run.engineVersion).toBe(3);
    expect(run.state.steps.map(({ step, policyVersion }) => [step, policyVersion])).toEqual([
      [1, 1],
      [2, 2],
      [3, 3],
    ]);
    const warnings = [...readEvents(run.path)].flatMap((event) => (event.type === "warning" ? [event.message] : []));
    expect(warnings[0]).toBe("step 1 broke off after 1 update (non_finite_gradient): NaN in q_proj");
  });

  it("a group that the trainer filters out is dropped by its reason, and not tried again", async () => {
    const run = new StubRun(directory, 4);
    const { train } = run.services;
    run.services.train = async (groups, step) => ({
      ...(await train(groups, step)),
      dropped: new Map([[groups[0]!.groupId, "no_signal"]]),
    });
    await run.run();
    expect(run.consumed()).toEqual(onceEach(run.promptIds, 1));
    expect(run.state.groups.map(({ outcome, reason }) => reason ?? outcome)).toEqual([
      "no_signal",
      "trained",
      "no_signal",
      "trained",
    ]);
  });

  it("a sync that takes longer than a group may is no group's fault", async () => {
    const run = new StubRun(directory, 8, { groupTimeout: 0.1, maxStaleness: 1 });
    const { sync } = run.services;
    let held = Promise.resolve();
    run.services.sync = (version) => {
      const work = new Promise((resolve) => setTimeout(resolve, 150)).then(() => sync(version));
      held = work.then(() => {});
      return work;
    };
    run.services.rollout = async (prompt, groupId, rolloutId) => {
      const version = run.engineVersion;
      await new Promise((resolve) => setTimeout(resolve, prompt.index % 2 === 0 ? 0 : 5));
      await held; // as its next model call would be
      await new Promise((resolve) => setTimeout(resolve, 20));
      return rolloutOf(prompt, groupId, rolloutId, version);
    };
    await run.run();
    expect(run.state.groups.map(({ outcome }) => outcome)).toEqual(Array(8).fill("trained"));
  });

  it("groups that hang from the first on are dropped at their deadline", async () => {
    const run = new StubRun(directory, 2, { groupTimeout: 0.1, maxStaleness: 0 });
    const { rollout } = run.services;
    run.services.rollout = (prompt, ...rest) => (prompt.attempt === 0 ? never : rollout(prompt, ...rest));
    expect(await run.run()).toBe("completed");
    expect(run.state.groups.map(({ reason, outcome }) => reason ?? outcome)).toEqual([
      "stale",
      "stale",
      "trained",
      "trained",
    ]);
  });

  it("nothing goes on behind a failure: no step, no checkpoint", async () => {
    const run = new StubRun(directory, 20, { steps: 3 });
    let finish: (() => void) | undefined;
    const { train } = run.services;
    run.services.train = async (groups, step) => {
      await new Promise<void>((resolve) => {
        finish = resolve;
      });
      return train(groups, step);
    };
    let die: (error: Error) => void = () => {};
    run.services.died = new Promise((_, reject) => {
      die = reject;
    });
    const running = run.run();
    await vi.waitFor(() => expect(finish).toBeDefined());
    die(new Error("engine 0 was killed by SIGKILL"));
    await expect(running).rejects.toThrow("engine 0 was killed by SIGKILL");
    finish!();
    await new Promise((resolve) => setTimeout(resolve, 10));
    expect(run.saved).toBe(null);
    expect(existsSync(run.path)).toBe(false); // no event
  });

  it("interrupted before it begins, it starts nothing", async () => {
    const run = new StubRun(directory, 20, { evalAtStart: true });
    let started = 0;
    run.services.rollout = async () => {
      started++;
      return never;
    };
    run.services.evaluate = async () => {
      started++;
      return {};
    };
    expect(await run.run(AbortSignal.abort())).toBe("interrupted");
    expect(started).toBe(0);
  });

  it.each([0, 1, 2])(
    "makes progress with a slow sync and staleness %i, and no row is older (case D2)",
    async (staleness) => {
      const run = new StubRun(directory, 24, { maxStaleness: staleness });
      const { sync } = run.services;
      run.services.sync = async (version) => {
        await new Promise((resolve) => setTimeout(resolve, 10));
        return sync(version);
      };
      expect(await run.run()).toBe("completed");
      const ages = run.state.steps.map((event) => event.metrics.staleness_max!);
      expect(Math.max(...ages)).toBeLessThanOrEqual(staleness);
      expect(run.state.step).toBe(12);
    },
  );

  it("pins an eval to one version: the sync waits for it", async () => {
    const run = new StubRun(directory, 12, { evalSteps: 2, evalAtStart: true });
    run.services.evaluate = async () => {
      run.evaluating += 1;
      const version = run.engineVersion;
      await new Promise((resolve) => setTimeout(resolve, 20));
      run.evaluating -= 1;
      return { accuracy: version };
    };
    await run.run();
    expect(run.syncedWhileEvaluating).toBe(false);
    expect(run.state.evals.map(({ step, policyVersion, metrics }) => [step, policyVersion, metrics.accuracy])).toEqual([
      [0, 0, 0],
      [2, 2, 2],
      [4, 4, 4],
      [6, 6, 6],
    ]);
  });

  it("an interrupt finishes the step at hand, saves it and ends", async () => {
    const run = new StubRun(directory, 40, { saveSteps: -1 });
    const interrupt = new AbortController();
    const { train } = run.services;
    run.services.train = async (groups, step) => {
      if (step === 3) interrupt.abort();
      return train(groups, step);
    };
    expect(await run.run(interrupt.signal)).toBe("interrupted");
    expect(run.saved?.progress.step).toBe(3);
  });

  it("ends with the error of a process that died", async () => {
    const run = new StubRun(directory, 40);
    run.services.rollout = () => never;
    run.services.died = Promise.reject(new Error("engine 0 was killed by SIGKILL"));
    await expect(run.run()).rejects.toThrow("engine 0 was killed by SIGKILL");
  });

  // case F1
  it("a group of a later epoch is restored as itself while its prompt has yet to run in an earlier one", async () => {
    const run = new StubRun(directory, 4, { maxStaleness: 2 });
    run.epochs = 2;
    const twice = epochOrder(4, 7, 1)[0]!;
    let killed = false;
    const { rollout, train } = run.services;
    run.services.rollout = (prompt, ...rest) =>
      prompt.index === twice && prompt.epoch === 0 && !killed ? never : rollout(prompt, ...rest);
    run.services.train = async (groups, step) => {
      if (step === 1 || killed) return train(groups, step);
      killed = true;
      throw new Error("killed");
    };
    await expect(run.run()).rejects.toThrow("killed");
    const kept = run.saved!.progress.untrained.map(({ promptId, epoch }) => [promptId, epoch]);
    expect(kept).toContainEqual([`p${twice}`, 1]);
    expect(kept).not.toContainEqual([`p${twice}`, 0]);
    expect(await run.run()).toBe("completed");
    expect(run.consumed()).toEqual(onceEach(run.promptIds, 2));
  });

  // case F1, invariant 6
  it("killed anywhere and resumed, consumes each prompt exactly once an epoch", async () => {
    const scenario = fc.record({
      prompts: fc.integer({ min: 1, max: 14 }),
      batchSize: fc.integer({ min: 1, max: 4 }),
      maxStaleness: fc.integer({ min: 0, max: 2 }),
      saveSteps: fc.integer({ min: 1, max: 3 }),
      kills: fc.array(
        fc.record({ step: fc.integer({ min: 1, max: 6 }), when: fc.constantFrom("train", "sync", "save") }),
        {
          maxLength: 3,
        },
      ),
      delays: fc.array(fc.nat({ max: 3 }), { minLength: 8, maxLength: 8 }),
      failing: fc.array(fc.nat({ max: 13 }), { maxLength: 3 }),
      hopeless: fc.nat({ max: 13 }),
      skipping: fc.array(fc.integer({ min: 1, max: 6 }), { maxLength: 2 }),
    });
    await fc.assert(
      fc.asyncProperty(scenario, async ({ prompts, kills, delays, failing, hopeless, skipping, ...options }) => {
        const home = mkdtempSync(join(directory, "case-"));
        const run = new StubRun(home, prompts, options);
        run.epochs = 2;
        run.maxAttempts = 2;
        let kill: { step: number; when: string } | undefined;
        const { train, sync, checkpoint } = run.services;
        const dieAt = (when: string, step: number) => {
          if (kill?.when === when && kill.step === step) throw new Error("killed");
        };
        run.services.rollout = async (prompt, groupId, rolloutId) => {
          const version = run.engineVersion;
          await new Promise((resolve) => setTimeout(resolve, delays[(prompt.index + prompt.epoch) % delays.length]));
          const fails = prompt.index === hopeless || (failing.includes(prompt.index) && prompt.attempt === 0);
          return fails
            ? failureOf(prompt, groupId, rolloutId, "agent_error")
            : rolloutOf(prompt, groupId, rolloutId, version);
        };
        run.services.train = async (groups: Group[], step) => {
          dieAt("train", step);
          if (!skipping.includes(step)) return train(groups, step);
          const dropped = new Map(groups.map(({ groupId }) => [groupId, "no_signal"]));
          return { metrics: {}, updates: 0, dropped, skipped: { reason: "no_trainable_tokens", detail: "" } };
        };
        run.services.sync = async (version) => {
          dieAt("sync", version);
          await new Promise((resolve) => setTimeout(resolve, delays[version % delays.length]));
          return sync(version);
        };
        run.services.checkpoint = async (progress) => {
          dieAt("save", progress.step);
          return checkpoint(progress);
        };
        for (kill of [...kills, undefined]) await run.run().catch((error) => expect(error.message).toBe("killed"));
        expect(run.consumed()).toEqual(onceEach(run.promptIds, 2));
        const ages = run.state.steps.map((event) => event.metrics.staleness_max!);
        expect(Math.max(0, ...ages)).toBeLessThanOrEqual(options.maxStaleness);
      }),
      { numRuns: 60 },
    );
  }, 120_000);
});
