import { expect, it } from "vitest";
import type { AgentPool } from "../agents/pool.ts";
import type { Row } from "../agents/types.ts";
import { type EvalProfile, evaluate } from "./evaluate.ts";

const rows = ["a", "b", "c"].map((id): Row => ({ id, messages: [], label: null, fields: {} }));
const sampling = { temperature: 0, topP: 1, topK: 0, maxNewTokens: 8 };
const profile: EvalProfile = { metric: "accuracy", sampling, samplesPerPrompt: 2, pool: "train" };

/** Scores by rollout id; the others hang until they are aborted. */
const agents = (scores: Record<string, number>) =>
  ({
    async runRollout({ rolloutId }: { rolloutId: string }, signal: AbortSignal) {
      const score = scores[rolloutId.replace("eval-3/accuracy/", "")];
      if (score !== undefined) return { rolloutId, segments: [], score };
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve));
      return { rolloutId, reason: "aborted", message: "the run took this rollout back" };
    },
  }) as unknown as AgentPool;

const whole = { "a/0": 1, "a/1": 0, "b/0": 1, "b/1": 1, "c/0": 0, "c/1": 0 };

it("is the mean over prompts of the mean over samples", async () => {
  const { signal } = new AbortController();
  // By hand: (0.5 + 1 + 0) / 3.
  const metrics = await evaluate(rows, [profile], agents(whole), "eval-3", signal);
  expect(metrics).toEqual({ prompts: 3, failed: 0, accuracy: 0.5 });
});

it("given up in its midst ends with what it has: what is missing is counted, not scored", async () => {
  const controller = new AbortController();
  const { "a/1": _, "c/0": __, "c/1": ___, ...some } = whole;
  const evaluating = evaluate(rows, [profile], agents(some), "eval-3", controller.signal);
  controller.abort();
  // By hand: a's one sample has 1, b's two have 1, c has none.
  expect(await evaluating).toEqual({ prompts: 3, failed: 3, accuracy: 1 });
  expect(await evaluate(rows, [profile], agents({}), "eval-3", controller.signal)).toEqual({
    prompts: 3,
    failed: 6,
    accuracy: Number.NaN,
  });
});
