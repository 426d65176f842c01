import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { AgentPool } from "../agents/pool.ts";
import { Mask, type Rollout, type Row, type StopReason } from "../agents/types.ts";
import { type EvalProfile, type EvalTask, evaluate, passAtK } from "./evaluate.ts";

const rows = ["a", "b", "c"].map((id): Row => ({ id: `heldout:${id}`, messages: [], label: null, fields: {} }));
const sampling = { temperature: 1, topP: 1, topK: 0, maxNewTokens: 8 };
const profile: EvalProfile = { metric: "accuracy", sampling, samplesPerPrompt: 2, pool: "train" };
const task: EvalTask = { rows, profiles: [profile], passK: [], evalId: "eval-3", policyVersion: 7 };

interface Made {
  score: number;
  reward?: number;
  /** Tokens of each turn, and what ended it. */
  turns?: [length: number, stop: StopReason][];
  stop?: StopReason;
}

function rollout(
  rolloutId: string,
  { score, reward = score, turns = [[3, "stop"]], stop = "env_done" }: Made,
): Rollout {
  const length = turns.reduce((sum, [tokens]) => sum + tokens, 1);
  const mask = new Uint8Array(length).fill(Mask.trained, 1);
  const made = turns.map(([, stop]) => ({ stop }));
  return { rolloutId, segments: [{ mask, tokens: new Int32Array(length), turns: made }], score, reward, stop } as never;
}

/** Rollouts by id; the others hang until they are aborted. */
const agents = (made: Record<string, number | Made>) =>
  ({
    async runRollout({ rolloutId }: { rolloutId: string }, signal: AbortSignal) {
      const one = made[rolloutId.replace(/^eval-3\/accuracy\/heldout:/, "")];
      if (one !== undefined) return rollout(rolloutId, typeof one === "number" ? { score: one } : one);
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
      return { rolloutId, reason: "aborted", message: "the run took this rollout back" };
    },
  }) as unknown as AgentPool;

const whole = { "a/0": 1, "a/1": 0, "b/0": 1, "b/1": 1, "c/0": 0, "c/1": 0 };
const { signal } = new AbortController();

it("is the mean over prompts of the mean over samples, with its standard error", async () => {
  const { metrics } = await evaluate(task, agents(whole), signal);
  // numpy: mean([0.5, 1, 0]), std([0.5, 1, 0], ddof=1) / sqrt(3).
  expect(metrics).toMatchObject({ prompts: 3, failed: 0, accuracy: 0.5 });
  expect(metrics.accuracy_stderr).toBeCloseTo(0.288675134594812, 14);
});

it("leaves out what too many failures leave without a figure", async () => {
  const sources = { a: "sums", b: "sums", c: "sorts" } as Record<string, string>;
  const ofSources = rows.map((row) => ({ ...row, fields: { data_source: sources[row.id.at(-1)!] } }));
  const some = {
    async runRollout({ rolloutId }: { rolloutId: string }) {
      if (/a.[01]$|b.0$/.test(rolloutId)) return rollout(rolloutId, { score: 1 });
      return { rolloutId, reason: "engine", message: "no engine answers" };
    },
  } as unknown as AgentPool;
  const { metrics } = await evaluate({ ...task, rows: ofSources, passK: [1, 2] }, some, signal);
  expect(metrics).toMatchObject({
    accuracy: 1,
    "pass@2": 1,
    "sums/accuracy": 1,
    "sorts/prompts": 1,
    "sorts/failed": 2,
  });
  expect(Object.keys(metrics).filter((name) => name.startsWith("sorts/"))).toEqual(["sorts/prompts", "sorts/failed"]);
  expect(Object.entries(metrics).filter(([, value]) => Number.isNaN(value))).toEqual([]);
});

it("says pass@k, reward, lengths, truncation and stops of the rollouts", async () => {
  const made = {
    "a/0": { score: 1, reward: 3, turns: [[5, "stop"]], stop: "env_done" },
    "a/1": {
      score: 0,
      reward: 1,
      turns: [
        [2, "stop"],
        [8, "length"],
      ],
      stop: "env_done",
    },
    "b/0": { score: 0, reward: -1, turns: [[1, "context"]], stop: "context" },
    "b/1": { score: 0, reward: -1, turns: [[2, "stop"]], stop: "max_turns" },
  } satisfies Record<string, Made>;
  const two = { ...task, rows: rows.slice(0, 2), passK: [1, 2] };
  const { metrics } = await evaluate(two, agents(made), signal);
  expect(metrics).toEqual({
    prompts: 2,
    failed: 0,
    accuracy: 0.25,
    accuracy_stderr: 0.25,
    "pass@1": 0.25,
    "pass@2": 0.5,
    // (2 - 1) / 2.
    reward: 0.5,
    truncated: 0.5,
    // (5 + 10 + 1 + 2) / 4.
    response_length: 4.5,
    response_length_max: 10,
    "stop/env_done": 0.5,
    "stop/context": 0.25,
    "stop/max_turns": 0.25,
  });
});

it("of several data sources, each has its own; a row's column goes before its file's name", async () => {
  const sourced = rows.map((row, at) => ({ ...row, fields: at === 2 ? { data_source: "code" } : {} }));
  const { metrics, sources } = await evaluate({ ...task, rows: sourced, passK: [2] }, agents(whole), signal);
  expect(sources).toEqual(["heldout", "code"]);
  expect(metrics).toMatchObject({ accuracy: 0.5, "heldout/accuracy": 0.75, "code/accuracy": 0 });
  expect(metrics).toMatchObject({ "pass@2": 2 / 3, "heldout/pass@2": 1, "code/pass@2": 0, "code/prompts": 1 });
  const alone = await evaluate(task, agents(whole), signal);
  expect([alone.sources, Object.keys(alone.metrics).filter((name) => name.includes("accuracy"))]).toEqual([
    [],
    ["accuracy", "accuracy_stderr"],
  ]);
});

it("gives what was sampled as groups, with the version that was evaluated", async () => {
  const { groups } = await evaluate(task, agents(whole), signal);
  expect(groups.map(({ groupId, admittedVersion, rollouts }) => [groupId, admittedVersion, rollouts.length])).toEqual(
    ["a", "b", "c"].map((id) => [`eval-3/accuracy/heldout:${id}`, 7, 2]),
  );
  expect(groups[1]!.rollouts[1]!.rolloutId).toBe("eval-3/accuracy/heldout:b/1");
});

it("given up in its midst ends with what it has: what is missing is counted, not scored", async () => {
  const controller = new AbortController();
  const { "a/1": _, "c/0": __, "c/1": ___, ...some } = whole;
  const evaluating = evaluate({ ...task, passK: [2] }, agents(some), controller.signal);
  controller.abort();
  // By hand: a's one sample has 1, b's two have 1, c has none; only b has two for pass@2.
  expect((await evaluating).metrics).toMatchObject({ prompts: 3, failed: 3, accuracy: 1, "pass@2": 1 });
  expect((await evaluate(task, agents({}), controller.signal)).metrics).toEqual({
    prompts: 3,
    failed: 6,
  });
});

it("without a rollout that came to an end is an error with the first one's reason", async () => {
  const failing = { runRollout: async () => ({ reason: "engine", message: "no engine answers" }) };
  await expect(evaluate(task, failing as unknown as AgentPool, signal)).rejects.toThrow("no engine answers");
});

describe("pass@k", () => {
  it("is 1 - C(n - c, k) / C(n, k) of scores 0 and 1", () => {
    // Chen et al. 2021, with Python's math.comb.
    const scores = (n: number, c: number) => Array.from({ length: n }, (_, at) => Number(at < c));
    expect(passAtK(scores(10, 3), 1)).toBeCloseTo(0.3, 15);
    expect(passAtK(scores(10, 3), 5)).toBeCloseTo(0.9166666666666666, 15);
    expect(passAtK(scores(200, 1), 100)).toBeCloseTo(0.5, 14);
    expect(passAtK(scores(200, 13), 64)).toBeCloseTo(0.9945228923223403, 13);
    expect(passAtK(scores(7, 0), 3)).toBe(0);
    expect(passAtK(scores(7, 7), 3)).toBeCloseTo(1, 15);
  });

  it("is the mean over all subsets of k of their best score", () => {
    const subsets = (items: number[], k: number): number[][] =>
      k === 0 ? [[]] : items.flatMap((item, at) => subsets(items.slice(at + 1), k - 1).map((rest) => [item, ...rest]));
    const score = fc.oneof(fc.constantFrom(0, 1), fc.double({ min: -2, max: 2, noNaN: true }));
    fc.assert(
      fc.property(fc.array(score, { minLength: 1, maxLength: 9 }), fc.nat(), (scores, any) => {
        const k = 1 + (any % scores.length);
        const best = subsets(scores, k).map((subset) => Math.max(...subset));
        const mean = best.reduce((sum, value) => sum + value, 0) / best.length;
        expect(Math.abs(passAtK(scores, k) - mean)).toBeLessThan(1e-12);
      }),
    );
  });
});
