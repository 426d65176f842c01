import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { FailureReason } from "../agents/failures.ts";
import type { FailedRollout, Group, Rollout } from "../agents/types.ts";
import { epochOrder, type Prompt, PromptQueue, type PromptQueueState } from "../data/order.ts";
import { deferred } from "../deferred.ts";
import type { RunEvent } from "../telemetry/events.ts";
import { foldRun, type RunState } from "../telemetry/fold.ts";
import { EventLog } from "../telemetry/log.ts";
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

function failureOf(prompt: Prompt, groupId: string, rolloutId: string, reason: FailureReason): FailedRollout {
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
  evalApart: false,
  saveSteps: 1,
  stopAfterSkipped: 3,
  deterministic: false,
};

type GroupEvent = Extract<RunEvent, { type: "group" }>;

/** A run whose rollouts, trainer and engines are scripts. */
class StubRun {
  readonly options: LoopOptions;
  readonly log: EventLog;
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
    this.log = new EventLog(join(directory, "events.ndjson"));
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
    return foldRun(this.log.read());
  }

  /** What became of groups; a resume supersedes what came after its step. */
  get groups(): GroupEvent[] {
    let groups: GroupEvent[] = [];
    for (const event of this.log.read()) {
      if (event.type === "resumed") groups = groups.filter(({ step }) => step <= event.fromStep);
      if (event.type === "group") groups.push(event);
    }
    return groups;
  }

  /** How often each prompt was consumed, by epoch and id. */
  consumed(): Record<string, number> {
    const counts: Record<string, number> = {};
    for (const { epoch, promptId, groupId, outcome, requeued } of this.groups) {
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
    const dropped = run.groups.filter((group) => group.outcome === "dropped");
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
        ? Promise.resolve(failureOf(prompt, groupId, rolloutId, "reward"))
        : rollout(prompt, groupId, rolloutId, signal);
    await one.run();
    expect(one.consumed()).toEqual(onceEach(one.promptIds, 1));
    expect(one.groups.filter((group) => group.promptId === "p4").map((group) => group.requeued)).toEqual([
      true,
      true,
      false,
    ]);
    const all = new StubRun(directory, 10);
    all.services.rollout = async (prompt, groupId, rolloutId) => failureOf(prompt, groupId, rolloutId, "engine");
    await expect(all.run()).rejects.toThrow("8 groups in a row were dropped (engine: 8); the last one: engine of");
  });

  it.each([-2, 9])(
    "a rollout with a token of version %i, which no engine had, is no data (case D3)",
    async (version) => {
      const run = new StubRun(directory, 4);
      const { rollout } = run.services;
      run.services.rollout = async (prompt, groupId, rolloutId, signal) =>
        prompt.attempt === 0 && rolloutId.endsWith("/1")
          ? rolloutOf(prompt, groupId, rolloutId, version)
          : rollout(prompt, groupId, rolloutId, signal);
      await run.run();
      expect(run.consumed()).toEqual(onceEach(run.promptIds, 1));
      const lied = run.groups.filter(({ outcome }) => outcome === "dropped");
      expect(lied.map(({ reason, requeued }) => [reason, requeued])).toEqual(Array(4).fill(["engine", true]));
      expect(Math.max(...run.state.steps.map(({ metrics }) => metrics.staleness_max!))).toBeLessThanOrEqual(1);
    },
  );

  it("a prompt that cannot ever fit is not tried again", async () => {
    const run = new StubRun(directory, 10);
    const { rollout } = run.services;
    run.services.rollout = (prompt, groupId, rolloutId, signal) =>
      prompt.index === 4
        ? Promise.resolve(failureOf(prompt, groupId, rolloutId, "context"))
        : rollout(prompt, groupId, rolloutId, signal);
    await run.run();
    expect(run.consumed()).toEqual(onceEach(run.promptIds, 1));
    const dropped = run.groups.filter((group) => group.outcome === "dropped");
    expect(dropped.map(({ promptId, reason, requeued }) => [promptId, reason, requeued])).toEqual([
      ["p4", "context", false],
    ]);
  });

  // case C2, the loop's half
  it("a group counts with as many as `rollout.min_group`; each failure is counted by its reason", async () => {
    const run = new StubRun(directory, 6, { samplesPerPrompt: 4, minGroup: 2, batchSize: 3, maxStaleness: 0 });
    run.maxAttempts = 1;
    const { rollout } = run.services;
    // Members that fail, of the prompts in order: p0 loses two, p1 three.
    const failing: Record<string, FailureReason> = {
      "p0/1": "engine",
      "p0/3": "reward",
      "p1/0": "worker",
      "p1/1": "reward",
      "p1/2": "reward",
    };
    run.services.rollout = (prompt, groupId, rolloutId, signal) => {
      const reason = failing[`${prompt.promptId}/${rolloutId.at(-1)}`];
      return reason
        ? Promise.resolve(failureOf(prompt, groupId, rolloutId, reason))
        : rollout(prompt, groupId, rolloutId, signal);
    };
    const trained: [string, number][] = [];
    const { train } = run.services;
    run.services.train = (groups, step) => {
      trained.push(...groups.map(({ promptId, rollouts }): [string, number] => [promptId, rollouts.length]));
      return train(groups, step);
    };
    await run.run();
    expect(Object.fromEntries(trained)).toEqual({ p0: 2, p2: 4, p3: 4, p4: 4, p5: 4 });
    expect(run.groups.find(({ promptId }) => promptId === "p1")).toMatchObject({ reason: "worker" });
    const failed = [...run.log.read()].flatMap((event) => (event.type === "rollout_failed" ? [event] : []));
    expect(
      Object.fromEntries(failed.map(({ promptId, rolloutId, reason }) => [promptId + rolloutId.slice(-2), reason])),
    ).toEqual(failing);
    const total = (name: string) => run.state.steps.reduce((sum, { metrics }) => sum + (metrics[name] ?? 0), 0);
    expect([total("failed/engine"), total("failed/reward"), total("failed/worker")]).toEqual([1, 3, 1]);
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
    expect(run.groups.filter(({ outcome }) => outcome === "trained")).toHaveLength(2);
    const dropped = run.groups.filter(({ outcome }) => outcome === "dropped");
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
    const warnings = [...run.log.read()].flatMap((event) => (event.type === "warning" ? [event.message] : []));
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
    expect(run.groups.map(({ outcome, reason }) => reason ?? outcome)).toEqual([
      "no_signal",
      "trained",
      "no_signal",
      "trained",
    ]);
  });

  // invariant 1
  it("what is dropped after the last batch is told and stored too, at its checkpoint's step", async () => {
    const run = new StubRun(directory, 3);
    run.maxAttempts = 1;
    const synced = deferred();
    const { rollout, sync } = run.services;
    const last = epochOrder(3, 7, 0)[2];
    run.services.rollout = async (prompt, groupId, rolloutId, signal) => {
      if (prompt.index === last) await synced.promise;
      if (prompt.index === last && rolloutId.endsWith("/1")) return failureOf(prompt, groupId, rolloutId, "reward");
      const sampled = (await rollout(prompt, groupId, rolloutId, signal)) as Rollout;
      const turn = { start: 1, end: 2, callId: rolloutId, stop: "stop" as const, temperature: 1 };
      sampled.segments[0]!.turns.push(turn);
      return sampled;
    };
    run.services.sync = async (version) => {
      synced.resolve();
      await new Promise((resolve) => setTimeout(resolve, 5));
      return sync(version);
    };
    const stored: [number, string][] = [];
    run.services.storeRollouts = async (step, records) => {
      stored.push(...records.map(({ dropped }): [number, string] => [step, dropped?.reason ?? "trained"]));
    };
    expect(await run.run()).toBe("completed");
    expect(stored).toEqual([
      [1, "trained"],
      [1, "trained"],
      [1, "reward"],
    ]);
    expect(run.groups.map(({ step, reason }) => [step, reason])).toContainEqual([1, "reward"]);
    // By hand: two groups of two rollouts of one token, and the half of the third that did not fail.
    const [first, second] = run.state.funnels;
    expect(first).toMatchObject({ step: 1, sampled: 4, trained: 4 });
    expect(second).toMatchObject({ step: 1, sampled: 1, trained: 0, dropped: { reward: 1 } });
  });

  it("ages are those of what was trained, not of what the filter left out", async () => {
    const run = new StubRun(directory, 4, { batchSize: 2 });
    const { rollout, train } = run.services;
    const [first] = epochOrder(4, 7, 0);
    run.services.rollout = async (prompt, ...rest) => {
      const sampled = await rollout(prompt, ...rest);
      // For the second batch: its version is 0, one old when it trains.
      if (prompt.index === first) await vi.waitFor(() => expect(run.trainerVersion).toBe(1), 20_000);
      return sampled;
    };
    run.services.train = async (groups, step) => {
      const old = groups.filter(({ admittedVersion }) => admittedVersion < step - 1);
      const dropped = new Map(old.map(({ groupId }) => [groupId, "no_signal"]));
      return { ...(await train(groups, step)), dropped };
    };
    await run.run();
    expect(run.groups.filter(({ reason }) => reason === "no_signal").length).toBeGreaterThan(0);
    expect(run.state.steps.map(({ metrics }) => metrics.staleness_max)).toEqual([0, 0]);
  });

  it("a sync that takes longer than a group may is no group's fault", async () => {
    const run = new StubRun(directory, 8, { groupTimeout: 1, maxStaleness: 1 });
    const { sync } = run.services;
    let held = Promise.resolve();
    run.services.sync = (version) => {
      const work = new Promise((resolve) => setTimeout(resolve, 1500)).then(() => sync(version));
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
    expect(run.groups.map(({ outcome }) => outcome)).toEqual(Array(8).fill("trained"));
  });

  it("groups that hang from the first on are dropped at their deadline", async () => {
    const run = new StubRun(directory, 2, { groupTimeout: 0.1, maxStaleness: 0 });
    const { rollout } = run.services;
    run.services.rollout = (prompt, ...rest) => (prompt.attempt === 0 ? never : rollout(prompt, ...rest));
    expect(await run.run()).toBe("completed");
    expect(run.groups.map(({ reason, outcome }) => reason ?? outcome)).toEqual([
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
    await vi.waitFor(() => expect(finish).toBeDefined(), 20_000);
    die(new Error("engine 0 was killed by SIGKILL"));
    await expect(running).rejects.toThrow("engine 0 was killed by SIGKILL");
    finish!();
    await new Promise((resolve) => setTimeout(resolve, 10));
    expect(run.saved).toBe(null);
    expect([...run.log.read()]).toEqual([]);
  });

  it("nor does a loop that failed drop groups at their deadline: another may have them by then", async () => {
    const run = new StubRun(directory, 8, { groupTimeout: 0.05 });
    let running = 0;
    run.services.rollout = () => {
      running++;
      return never;
    };
    let die: (error: Error) => void = () => {};
    run.services.died = new Promise((_, reject) => {
      die = reject;
    });
    const ended = run.run();
    await vi.waitFor(() => expect(running).toBe(8), 20_000); // S = 1: two batches of two groups
    die(new Error("rank 0 was killed by SIGKILL"));
    await expect(ended).rejects.toThrow("rank 0 was killed by SIGKILL");
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect([...run.log.read()]).toEqual([]);
  });

  it("nor does a sync that was under way make it a step", async () => {
    const run = new StubRun(directory, 8);
    const { sync } = run.services;
    const finish = deferred();
    let die: (error: Error) => void = () => {};
    run.services.died = new Promise((_, reject) => {
      die = reject;
    });
    run.services.sync = async (version) => {
      die(new Error("rank 0 was killed by SIGKILL"));
      await finish.promise;
      return sync(version);
    };
    await expect(run.run()).rejects.toThrow("rank 0 was killed by SIGKILL");
    finish.resolve();
    await new Promise((resolve) => setTimeout(resolve, 10));
    const types = new Set([...run.log.read()].map(({ type }) => type));
    expect(types).toEqual(new Set(["group", "funnel"]));
    expect(run.saved).toBe(null);
  });

  it("nor does a checkpoint come of a failure in the last eval", async () => {
    const run = new StubRun(directory, 4, { saveSteps: -1 });
    let die: (error: Error) => void = () => {};
    run.services.died = new Promise((_, reject) => {
      die = reject;
    });
    run.services.evaluate = async (_, signal) => {
      const ended = new Promise((resolve) => signal.addEventListener("abort", resolve));
      die(new Error("rank 0 was killed by SIGKILL"));
      await ended;
      return {};
    };
    await expect(run.run()).rejects.toThrow("rank 0 was killed by SIGKILL");
    await new Promise((resolve) => setTimeout(resolve, 10));
    expect([run.state.step, run.saved]).toEqual([2, null]);
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

  it("goes on training while an eval has engines of its own, which then get the newest version", async () => {
    const run = new StubRun(directory, 12, { evalSteps: 4, evalAtStart: true, evalApart: true });
    let evalVersion = 0;
    const synced: [number, string][] = [];
    run.services.sync = async (version, pools) => {
      synced.push([version, pools?.join() ?? "all"]);
      if (!pools || pools.includes("eval")) {
        run.syncedWhileEvaluating ||= run.evaluating > 0;
        evalVersion = version;
      }
      if (!pools || pools.includes("train")) run.engineVersion = version;
      return { seconds: 0, checksum: "c", engines: 1 };
    };
    const trainedMeanwhile = deferred();
    run.services.evaluate = async (step) => {
      run.evaluating += 1;
      const version = evalVersion;
      // The first lasts until the third version is out.
      if (step === 0) await trainedMeanwhile.promise;
      run.evaluating -= 1;
      return { accuracy: version };
    };
    const { train } = run.services;
    run.services.train = async (groups, step) => {
      if (step === 4) trainedMeanwhile.resolve();
      return train(groups, step);
    };
    await run.run();
    expect(run.syncedWhileEvaluating).toBe(false);
    expect(synced.slice(0, 4).map(([version]) => version)).toEqual([1, 2, 3, 4]);
    expect(synced.slice(0, 3).map(([, pools]) => pools)).toEqual(["train", "train", "train"]);
    expect(run.state.evals.map(({ step, policyVersion, metrics }) => [step, policyVersion, metrics.accuracy])).toEqual([
      [0, 0, 0],
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
      budget: fc.nat({ max: 4 }),
      alike: fc.array(fc.nat({ max: 13 }), { maxLength: 5 }),
    });
    await fc.assert(
      fc.asyncProperty(scenario, async (drawn) => {
        const { prompts, kills, delays, failing, hopeless, skipping, budget, alike, ...options } = drawn;
        const home = mkdtempSync(join(directory, "case-"));
        const reasonOf = ({ promptId }: Group) => (alike.includes(Number(promptId.slice(1))) ? "no_signal" : null);
        const run = new StubRun(home, prompts, { ...options, refill: { reasonOf, budget } });
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
