import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { Tokenizer } from "../data/tokenizer.ts";
import { withDeadline } from "../deadline.ts";
import type { CallOptions } from "../engines/client.ts";
import type { GenerateRequest, GenerateResult } from "../engines/types.ts";
import { runEnvRollout } from "./env-runner.ts";
import { turnSeed } from "./model-calls.ts";
import type { RolloutContext, RolloutLimits, RolloutTask } from "./rollout.ts";
import { type Action, Env, type FailedRollout, Mask, type Rollout, type Row, type StepResult } from "./types.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await Tokenizer.load(fileURLToPath(new URL("../../../recipes/quickstart/model", import.meta.url)));
});

const row: Row = { id: "rows:1", messages: [{ role: "user", content: "hi" }], label: "ok", fields: {} };
const task: RolloutTask = {
  row,
  groupId: "g",
  rolloutId: "g/0",
  attempt: 2,
  sampling: { temperature: 0.7, topP: 1, topK: 0, maxNewTokens: 8 },
};
const limits: RolloutLimits = {
  maxLen: 64,
  maxTurns: 4,
  maxRequests: 64,
  rolloutSeconds: 30,
  turnSeconds: 10,
  toolSeconds: 10,
  rewardSeconds: 10,
  heldSeconds: 60,
};
type Engine = (request: GenerateRequest, options: CallOptions) => Promise<GenerateResult> | GenerateResult;

/** `<end>` closes a reply that stopped. */
const reply = (tokenIds: number[], stop: GenerateResult["stop"] = "stop"): GenerateResult => {
  const ids = stop === "stop" ? [...tokenIds, 5] : tokenIds;
  return { tokenIds: ids, logprobs: ids.map(() => -0.5), versions: ids.map(() => 3), stop };
};

/** An engine that never answers: the client gives up at its deadline. */
const silence = ({ timeoutSeconds }: CallOptions) =>
  withDeadline<GenerateResult>(new Promise(() => {}), timeoutSeconds, "the engine");

class Leases {
  out = 0;
  given = 0;
  acquire = async () => {
    this.out++;
    this.given++;
    let released = false;
    const release = () => {
      if (!released) this.out--;
      released = true;
    };
    return { url: "http://engine", engine: 0, version: 0, release };
  };
}

function run(
  createEnv: () => Env,
  engine: Engine,
  options: { limits?: Partial<RolloutLimits>; task?: Partial<RolloutTask>; signal?: AbortSignal } = {},
) {
  const leases = new Leases();
  const requests: GenerateRequest[] = [];
  const context: RolloutContext = {
    runId: "run",
    seed: 42,
    tokenizer,
    limits: { ...limits, ...options.limits },
    router: leases,
    generate: async (_, request, options) => {
      requests.push(request);
      return engine(request, options);
    },
    locate: () => "agent.ts:7",
  };
  const signal = options.signal ?? new AbortController().signal;
  const outcome = runEnvRollout(createEnv, { ...task, ...options.task }, context, signal);
  return { outcome, leases, requests };
}

/** An agent from a step function. */
const agent = (step: (action: Action, row: Row) => unknown): (() => Env) => {
  class Scripted extends Env {
    override step(action: Action, given: Row) {
      return step(action, given) as StepResult;
    }
  }
  return () => new Scripted();
};
const done = agent(() => ({ reward: 1, done: true }));
const untilTurn = (last: number) =>
  agent(({ turn }) =>
    turn === last
      ? { reward: 1, done: true }
      : { reward: 0.25, done: false, messages: [{ role: "tool", content: "t" }] },
  );

async function failureOf(outcome: Promise<Rollout | FailedRollout>): Promise<FailedRollout> {
  const result = await outcome;
  expect(result).not.toHaveProperty("segments");
  return result as FailedRollout;
}

async function success(outcome: Promise<Rollout | FailedRollout>): Promise<Rollout> {
  const result = await outcome;
  expect(result).toHaveProperty("segments");
  return result as Rollout;
}

describe("an episode", () => {
  test("one turn: what goes to the engine, and what comes back as a row", async () => {
    const { outcome, requests, leases } = run(
      agent(({ text, stop, turn }, given) => ({
        reward: text === given.label && stop === "stop" && turn === 0 ? 1 : 0,
        score: 0.5,
        info: { length: text.length, bad: Number.NaN },
        done: true,
      })),
      () => reply([85, 81]), // "o", "k": 32 is id 6
    );
    const rollout = await success(outcome);
    expect(requests).toEqual([
      {
        requestId: "g/0.2.0",
        tokenIds: [1, 2, 78, 79, 5, 3],
        version: 0,
        sampling: { temperature: 0.7, topP: 1, topK: 0, maxTokens: 8, stopTokenIds: [5], seed: turnSeed(42, "g/0", 0) },
      },
    ]);
    const { segments, timings, ...rest } = rollout;
    expect(rest).toEqual({
      runId: "run",
      promptId: "rows:1",
      groupId: "g",
      rolloutId: "g/0",
      attempt: 2,
      reward: 1,
      score: 0.5,
      info: { length: 2 },
      stop: "env_done",
    });
    expect(segments).toEqual([
      {
        tokens: Int32Array.of(1, 2, 78, 79, 5, 3, 85, 81, 5),
        mask: Uint8Array.of(0, 0, 0, 0, 0, 0, 1, 1, 1),
        logprobs: Float32Array.of(NaN, NaN, NaN, NaN, NaN, NaN, -0.5, -0.5, -0.5),
        versions: Int32Array.of(-1, -1, -1, -1, -1, -1, 3, 3, 3),
        turns: [{ start: 6, end: 9, callId: "g/0.2.0", stop: "stop", temperature: 0.7, reward: 1 }],
      },
    ]);
    expect(timings.seconds).toBeGreaterThanOrEqual(timings.modelSeconds);
    expect(leases).toMatchObject({ out: 0, given: 1 });
  });

  test("several turns are one segment; rewards add up, the score is the last one's", async () => {
    const { outcome, requests } = run(untilTurn(2), () => reply([86]));
    const { segments, reward, score, stop } = await success(outcome);
    expect({ reward, score, stop }).toEqual({ reward: 1.5, score: 1.5, stop: "env_done" });
    expect(segments).toHaveLength(1);
    // <bos><user>hi<end><asst> p<end> <tool>t<end><asst> p<end> …
    const tool = [4, 90, 5, 3];
    expect([...segments[0]!.tokens]).toEqual([1, 2, 78, 79, 5, 3, 86, 5, ...tool, 86, 5, ...tool, 86, 5]);
    expect(requests[2]!.tokenIds).toEqual([...segments[0]!.tokens].slice(0, -2));
    expect(new Set(requests.map(({ sampling }) => sampling.seed)).size).toBe(3);
  });

  test("reset may replace the row's messages", async () => {
    class Replacing extends Env {
      override reset() {
        return { messages: [{ role: "user" as const, content: "a" }] };
      }
      step() {
        return { reward: 0, done: true };
      }
    }
    const { outcome, requests } = run(
      () => new Replacing(),
      () => reply([]),
    );
    await success(outcome);
    expect(requests[0]!.tokenIds).toEqual([1, 2, 71, 5, 3]);
  });

  test("the number of turns is bounded", async () => {
    const { outcome, requests } = run(untilTurn(99), () => reply([86]), { limits: { maxTurns: 3 } });
    expect(await success(outcome)).toMatchObject({ stop: "max_turns", reward: 0.75 });
    expect(requests).toHaveLength(3);
  });

  test("a reply never exceeds what remains of the context, and the episode ends with it", async () => {
    const stops: string[] = [];
    const env = agent(({ stop }) => {
      stops.push(stop);
      return { reward: 0.5, done: false, messages: [{ role: "tool", content: "t" }] };
    });
    const engine: Engine = ({ sampling }) =>
      reply(
        Array.from({ length: sampling.maxTokens }, () => 86),
        "length",
      );
    const { outcome, requests } = run(env, engine, { limits: { maxLen: 22 } });
    const { stop, reward, segments } = await success(outcome);
    // 6 prompt, 8 sampled; 5 of context (the missing <end> first), 3 sampled.
    expect(requests.map(({ sampling }) => sampling.maxTokens)).toEqual([8, 3]);
    expect(stops).toEqual(["length", "context"]);
    expect({ stop, reward }).toEqual({ stop: "context", reward: 1 });
    expect(segments[0]!.tokens).toHaveLength(22);
    expect([...segments[0]!.tokens].slice(14, 19)).toEqual([5, 4, 90, 5, 3]);
  });

  test("its own timeout is an outcome when it has said something", async () => {
    let turns = 0;
    const engine: Engine = (_, options) => (turns++ === 0 ? reply([86]) : silence(options));
    const { outcome } = run(untilTurn(9), engine, { limits: { rolloutSeconds: 1 } });
    expect(await success(outcome)).toMatchObject({ stop: "timeout", reward: 0.25 });
  });
});

describe("failures are data", () => {
  test("the engine is asked three times, every lease given back", async () => {
    let asked = 0;
    const flaky = run(done, () => {
      if (++asked < 3) throw new Error("HTTP 500");
      return reply([86]);
    });
    expect(await success(flaky.outcome)).toMatchObject({ reward: 1 });
    expect(flaky.leases).toMatchObject({ out: 0, given: 3 });
    const dead = run(done, () => {
      throw new Error("connection refused");
    });
    expect(await failureOf(dead.outcome)).toEqual({
      runId: "run",
      promptId: "rows:1",
      groupId: "g",
      rolloutId: "g/0",
      attempt: 2,
      reason: "engine",
      message: "connection refused",
    });
    expect(dead.leases).toMatchObject({ out: 0, given: 3 });
  });

  test.each([
    ["no token", { tokenIds: [], logprobs: [], versions: [], stop: "stop" }, "holds no token"],
    [
      "a log-probability that is none",
      { ...reply([86]), logprobs: [-1, Number.NEGATIVE_INFINITY] },
      "log-probability -Inf",
    ],
    ["arrays of other lengths", { ...reply([86]), versions: [3] }, "2 ids, 2 log-probabilities, 1 versions"],
  ] as [string, GenerateResult, string][])("an engine that answers with %s", async (_, answer, message) => {
    const failed = await failureOf(run(done, () => answer).outcome);
    expect(failed.reason).toBe("engine");
    expect(failed.message).toContain(message);
  });

  // Case D7.
  test.each([[null], [Number.NaN], ["1"], [undefined], [Number.POSITIVE_INFINITY]])("the reward %j", async (reward) => {
    const failed = await failureOf(
      run(
        agent(() => ({ reward, done: true })),
        () => reply([86]),
      ).outcome,
    );
    expect(failed.reason).toBe("reward");
    expect(failed.message).toContain(typeof reward === "string" ? '"1"' : String(reward));
  });

  // Case D7.
  test("an agent that throws is located; one that hangs is cut off", async () => {
    const throwing = agent(() => {
      throw new TypeError("x is undefined");
    });
    const failed = await failureOf(run(throwing, () => reply([86])).outcome);
    expect(failed).toMatchObject({
      reason: "agent_error",
      message: "agent.ts:7 the agent's step failed: x is undefined",
    });
    const hanging = agent(() => new Promise(() => {}));
    const late = await failureOf(run(hanging, () => reply([86]), { limits: { toolSeconds: 0.05 } }).outcome);
    expect(late).toMatchObject({ reason: "agent_timeout", message: "waited 0.05 s for the agent's step" });
  });

  test("a step that says nothing useful", async () => {
    const failed = async (result: unknown) =>
      (
        await failureOf(
          run(
            agent(() => result),
            () => reply([86]),
          ).outcome,
        )
      ).message;
    expect(await failed(undefined)).toContain("step returned undefined");
    expect(await failed({ reward: 1, done: false })).toContain("neither done nor the next messages");
  });

  test("close is called once, whether the episode succeeds or fails", async () => {
    let closed = 0;
    class Closing extends Env {
      private readonly fails: boolean;
      constructor(fails: boolean) {
        super();
        this.fails = fails;
      }
      step(): StepResult {
        if (this.fails) throw new Error("bad");
        return { reward: 0, done: true };
      }
      override close() {
        closed++;
      }
    }
    await run(
      () => new Closing(false),
      () => reply([86]),
    ).outcome;
    expect(closed).toBe(1);
    await run(
      () => new Closing(true),
      () => reply([86]),
    ).outcome;
    expect(closed).toBe(2);
  });

  test("a prompt that fills the context, and no reply in time, leave nothing to train", async () => {
    const long = await failureOf(run(done, () => reply([86]), { limits: { maxLen: 6 } }).outcome);
    expect(long).toMatchObject({ reason: "context", message: "the prompt has 6 tokens, all of data.max_len" });
    const late = await failureOf(
      run(done, (_, options) => silence(options), { limits: { rolloutSeconds: 0.05 } }).outcome,
    );
    expect(late).toMatchObject({ reason: "timeout", message: "no reply within 0.05 s" });
  });

  test("an aborted rollout ends at once", async () => {
    const controller = new AbortController();
    const engine: Engine = (_, { signal }) =>
      new Promise((_, reject) => {
        signal!.addEventListener("abort", () => reject(new Error("aborted")));
        controller.abort();
      });
    const { outcome, leases } = run(done, engine, { signal: controller.signal });
    expect(await failureOf(outcome)).toMatchObject({ reason: "aborted" });
    expect(leases.out).toBe(0);
  });
});

test("seeds are the same on a rerun and differ between turns, rollouts and runs", () => {
  const parts = fc.tuple(fc.nat(), fc.string(), fc.nat(100));
  fc.assert(
    fc.property(parts, parts, (one, other) => {
      expect(turnSeed(...one)).toBe(turnSeed(...one));
      expect(Number.isSafeInteger(turnSeed(...one))).toBe(true);
      if (JSON.stringify(one) !== JSON.stringify(other)) expect(turnSeed(...one)).not.toBe(turnSeed(...other));
    }),
  );
});

// Invariant 1.
test("what the engine sampled in committed turns is what is trained", async () => {
  const script = fc.array(fc.tuple(fc.array(fc.integer({ min: 6, max: 100 }), { maxLength: 6 }), fc.boolean()), {
    minLength: 1,
    maxLength: 5,
  });
  await fc.assert(
    fc.asyncProperty(script, async (turns) => {
      let turn = 0;
      const sampled: number[] = [];
      const engine: Engine = () => {
        const [ids, cut] = turns[turn++]!;
        const result = cut && ids.length > 0 ? reply(ids, "length") : reply(ids);
        sampled.push(...result.tokenIds);
        return result;
      };
      const { outcome } = run(untilTurn(turns.length - 1), engine, { limits: { maxLen: 500, maxTurns: 9 } });
      const { segments } = await success(outcome);
      const trained = segments.flatMap(({ tokens, mask }) => [...tokens].filter((_, i) => mask[i] === Mask.trained));
      expect(trained).toEqual(sampled);
      expect(segments).toHaveLength(1);
    }),
    { numRuns: 50 },
  );
});
