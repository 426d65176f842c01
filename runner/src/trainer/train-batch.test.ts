import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Group, Rollout, Segment } from "../agents/types.ts";
import { advantageEstimators } from "../algorithms/advantages/registry.ts";
import { readEdited } from "../recipe/index.ts";
import { nest } from "../recipe/schema.ts";
import type { Ranks } from "./handle.ts";
import type { RankMethods, UpdateResult } from "./protocol.ts";
import { trainSettings } from "./specs.ts";
import { type TrainSettings, trainBatch } from "./train-batch.ts";

/** Of a recipe with these keys, and `estimate`. */
function settingsOf(keys: Record<string, unknown> = {}, changed: Partial<TrainSettings> = {}): TrainSettings {
  const given = {
    "actor.model_name_or_path": "m",
    "data.prompt_dataset": "a.jsonl",
    "data.max_len": 64,
    "train.agent_path": "agent.ts",
    ...keys,
  };
  const { recipe } = readEdited(JSON.stringify(nest(Object.entries(given))), "r.yaml", { environment: {} });
  return {
    recipe,
    estimate: advantageEstimators.reinforce_baseline!,
    klCoef: recipe.algo.kl.init_coef,
    maxTokensPerDevice: 64,
    schedule: (updates) => 0.5 * (1 - updates / 10),
    ...changed,
  };
}
const settings = settingsOf();

/** Ranks that only write down what they are asked; `answer` plays the update. */
function fakeRanks({ count = 1, hasReference = false, answer = okay as (update: number) => UpdateResult } = {}) {
  const calls: { rank: number; method: keyof RankMethods; params: never }[] = [];
  const all: Ranks["all"] = async (method, params) => {
    const paramsOf = (typeof params === "function" ? params : () => params) as (rank: number) => unknown;
    const each = Array.from({ length: count }, (_, rank) => paramsOf(rank));
    each.forEach((value, rank) => {
      calls.push({ rank, method, params: value as never });
    });
    const updates = calls.filter((call) => call.method === "update" && call.rank === 0).length;
    return each.map((value) => {
      if (method === "score") return scored(value as RankMethods["score"][0]);
      if (method === "dropRows") return found(value as RankMethods["dropRows"][0]);
      return method === "update" ? answer(updates) : null;
    }) as never;
  };
  const of = <M extends keyof RankMethods>(method: M): RankMethods[M][0][] =>
    calls.filter((call) => call.method === method).map((call) => call.params);
  const ranks: Ranks = { dataCount: count, contextSize: 1, rowCost: (tokens) => tokens, hasReference, all };
  return { ranks, calls, of };
}

/** Of the old policy -1, of reference and critic -1.5, 0 on the two tokens of the prompt. */
function scored({ microbatches, as }: RankMethods["score"][0]): RankMethods["score"][1] {
  const row = Float32Array.of(0, 0, ...new Array(4).fill(as === "old" ? -1 : -1.5));
  return { logprobs: microbatches.flat().map(() => row) };
}

/** That the trainer's log-probabilities are -2, and the entropy of the t-th token t / 2; nothing of the prompt's. */
function found({ ids }: RankMethods["dropRows"][0]): RankMethods["dropRows"][1] {
  const trained = (of: (t: number) => number) => Float32Array.from({ length: 6 }, (_, t) => (t < 2 ? 0 : of(t)));
  return { found: ids.map(() => ({ trainerLogprobs: trained(() => -2), entropy: trained((t) => t / 2) })) };
}

function okay(): UpdateResult {
  return {
    sums: { policy_loss: 3 },
    maxima: { logprob_gap_max: 0.5 },
    gradientNorm: 2,
    criticGradientNorm: null,
    nonFinite: null,
  };
}

function segment(trained: number): Segment {
  const tokens = Int32Array.from({ length: trained + 2 }, (_, t) => t);
  return {
    tokens,
    mask: Uint8Array.from(tokens, (_, t) => (t < 2 ? 0 : 1)),
    logprobs: Float32Array.from(tokens, (_, t) => (t < 2 ? Number.NaN : -1)),
    versions: Int32Array.from(tokens, (_, t) => (t < 2 ? -1 : 0)),
    turns: [{ start: 2, end: trained + 2, callId: "c", stop: "stop", temperature: 0.7 }],
  };
}

function group(groupId: string, members: { reward: number; segments: Segment[] }[], promptId = groupId): Group {
  const rollouts = members.map(({ reward, segments }, index) => ({
    runId: "run",
    promptId,
    groupId,
    rolloutId: `${groupId}.${index}`,
    attempt: 0,
    segments,
    reward,
    score: reward,
    info: {},
    stop: "env_done",
    timings: { startedAt: 0, seconds: 0, modelSeconds: 0 },
  })) satisfies Rollout[];
  return { groupId, promptId, epoch: 0, admittedVersion: 0, attempt: 0, rollouts, failed: [] };
}

/** Advantage of each row: that of its trained tokens, which must all agree; untrained ones must be 0. */
async function advantages(
  groups: Group[],
  estimate = settings.estimate,
  keys: Record<string, unknown> = {},
): Promise<Record<string, number>> {
  const { ranks, of } = fakeRanks();
  await trainBatch(ranks, { groups }, settingsOf(keys, { estimate }), 0);
  const [params] = of("putAdvantages");
  return Object.fromEntries(
    params!.rows.map(({ id, advantages }) => {
      const values = advantages!;
      expect([...values.subarray(0, 2)]).toEqual([0, 0]);
      expect(new Set(values.subarray(2)).size).toBe(1);
      return [id, values[2]!];
    }),
  );
}

const rloo = advantageEstimators.rloo!;
const one = (reward: number, trained = 4) => ({ reward, segments: [segment(trained)] });

test("rows carry temperatures of their turns, and reach a rank once", async () => {
  const { ranks, of } = fakeRanks({ count: 2 });
  await trainBatch(ranks, { groups: [group("a", [one(1), one(0), one(0)])] }, settings, 0);
  const rows = of("putRows").flatMap(({ rows }) => rows);
  expect(rows.map((row) => row.id).sort()).toEqual(["a.0/0", "a.1/0", "a.2/0"]);
  expect(rows[0]!.temperatures).toEqual(Float32Array.of(1, 1, 0.7, 0.7, 0.7, 0.7));
  expect(of("update").map((params) => params.microbatches.length)).toEqual([1, 1]);
  expect(
    of("dropRows")
      .flatMap(({ ids }) => ids)
      .sort(),
  ).toEqual(["a.0/0", "a.1/0", "a.2/0"]);
});

test("of what was trained, advantages, trainer log-probabilities and entropy come back by group and row", async () => {
  const groups = [group("a", [one(1), one(0)]), group("b", [{ reward: 1, segments: [] }])];
  const { values } = await trainBatch(fakeRanks({ count: 2 }).ranks, { groups }, settingsOf({}, { estimate: rloo }), 0);
  // Leave-one-out: 1 - 0 and 0 - 1.
  const row = (advantage: number) => ({
    advantages: new Float32Array(4).fill(advantage),
    logprobs: new Float32Array(4).fill(-2),
    entropy: Float32Array.of(1, 1.5, 2, 2.5),
  });
  expect(values).toEqual(new Map([["a", { "a.0/0": row(1), "a.1/0": row(-1) }]]));
});

test("case C2: singletons and groups with failed members stay finite and are counted", async () => {
  const single = group("single", [one(5)]);
  const partly = group("partly", [one(1), one(0)]);
  partly.failed.push({ ...partly.rollouts[0]!, rolloutId: "partly.2", reason: "engine", message: "engine died" });
  const values = await advantages([single, partly], rloo);
  expect(values).toEqual({ "single.0/0": 0, "partly.0/0": 1, "partly.1/0": -1 });
  const empty = { ...group("empty", []), failed: partly.failed };
  const result = await trainBatch(fakeRanks().ranks, { groups: [single, partly, empty] }, settings, 0);
  expect(result.metrics).toMatchObject({ groups_without_signal: 2, "groups_dropped/failed": 1, reward: 2 });
});

// case C3
test("groups of 4, 3 and 4, one dropped, one prompt under two ids, in any order: results follow the id", async () => {
  const groups = [
    group(
      "a",
      [1, 0, 0, 1].map((reward) => one(reward)),
      "prompt",
    ),
    group(
      "b",
      [3, 1, 2].map((reward) => one(reward)),
      "prompt",
    ),
    group(
      "c",
      [1, 1, 1, 1].map((reward) => one(reward)),
    ),
  ];
  // By hand, as reward minus the mean of the others; c is dropped.
  const [third, expected] = [2 / 3, {} as Record<string, number>];
  [third, -third, -third, third].forEach((value, index) => {
    expected[`a.${index}/0`] = Math.fround(value);
  });
  [1.5, -1.5, 0].forEach((value, index) => {
    expected[`b.${index}/0`] = value;
  });
  for (const order of [
    [0, 1, 2],
    [2, 1, 0],
    [1, 2, 0],
  ]) {
    const shuffled = order.map((index) => groups[index]!);
    expect(await advantages(shuffled, rloo, { "algo.dynamic_filtering": "drop" })).toEqual(expected);
  }
});

test("case C7: one rollout cut into 5 rows moves nobody else's advantage", async () => {
  const others = [one(0), one(0.5), one(1)];
  const whole = await advantages([group("a", [one(1, 20), ...others]), group("b", [one(0), one(1)])]);
  const segments = [2, 3, 4, 5, 6].map(segment);
  const cut = await advantages([group("a", [{ reward: 1, segments }, ...others]), group("b", [one(0), one(1)])]);
  for (const [id, value] of Object.entries(whole)) expect(cut[id]).toBe(value);
  for (const leaf of [1, 2, 3, 4]) expect(cut[`a.0/${leaf}`]).toBe(whole["a.0/0"]);
});

test("dynamic filtering takes groups without signal out of the loss and its denominator", async () => {
  const { ranks, of } = fakeRanks();
  const groups = [group("a", [one(1), one(0)]), group("b", [one(1), one(1)]), group("c", [one(1)])];
  const result = await trainBatch(ranks, { groups }, settingsOf({ "algo.dynamic_filtering": "drop" }), 0);
  expect(of("update")[0]).toMatchObject({ numTokens: 8, microbatches: [["a.0/0", "a.1/0"]] });
  expect(result).toMatchObject({ tokens: 8, updates: 1, skipped: undefined });
  expect([...result.dropped]).toEqual([
    ["b", "no_signal"],
    ["c", "singleton"],
  ]);
  const counted = { "groups_dropped/no_signal": 1, "groups_dropped/singleton": 1, rows: 2, tokens_trained: 8 };
  expect(result.metrics).toMatchObject({ ...counted, policy_loss: 3 / 8, logprob_gap_max: 0.5, lr: 0.5 });
});

test("what agents say in numbers becomes metrics, each over the rollouts that say it", async () => {
  const said = group("a", [one(1), one(0), one(0)]);
  const infos: Record<string, number>[] = [{ tools: 3, tries: 1 }, { tools: 1 }, {}];
  said.rollouts.forEach((rollout, index) => {
    rollout.info = infos[index]!;
  });
  const { metrics } = await trainBatch(fakeRanks().ranks, { groups: [said] }, settings, 0);
  expect(metrics).toMatchObject({ "info/tools": 2, "info/tries": 1 });
});

test("case C8: a batch without a trainable token asks the ranks for nothing", async () => {
  const masked = segment(4);
  masked.mask.fill(0);
  const { ranks, calls } = fakeRanks();
  const result = await trainBatch(
    ranks,
    { groups: [group("a", [{ reward: 1, segments: [masked] }, one(0, 0)])] },
    settings,
    0,
  );
  expect(result).toMatchObject({ tokens: 0, updates: 0, skipped: { reason: "no_trainable_tokens" } });
  expect([...result.dropped]).toEqual([["a", "no_trainable_tokens"]]);
  expect(calls).toEqual([]);
});

test("case C8: a gradient that is not finite skips the rest; the schedule does not advance", async () => {
  const answer = (update: number) => (update < 2 ? okay() : { ...okay(), nonFinite: ["w1", "w2"] });
  const { ranks, of } = fakeRanks({ answer });
  const groups = [group("a", [one(1), one(0), one(0), one(1)])];
  const result = await trainBatch(ranks, { groups }, settingsOf({ "train.updates_per_batch": 3 }), 4);
  expect(of("update").map((params) => params.learningRate)).toEqual([0.3, 0.25]);
  const detail = "not finite: w1, w2";
  expect(result).toMatchObject({ updates: 1, tokens: 8, skipped: { reason: "non_finite_gradient", detail } });
  expect(result.dropped.size).toBe(0); // its first update was made
  const none = await trainBatch(fakeRanks({ answer: () => answer(2) }).ranks, { groups }, settings, 4);
  expect([...none.dropped]).toEqual([["a", "non_finite_gradient"]]);
  const broken = (): UpdateResult => ({ ...answer(2), sums: { policy_loss: Number.NaN } });
  const { skipped } = await trainBatch(fakeRanks({ answer: broken }).ranks, { groups }, settings, 4);
  expect(skipped?.detail).toBe("the loss is NaN; not finite: w1, w2");
});

test("old log-probabilities are scored when a batch makes several updates; the reference if there is one", async () => {
  const groups = [group("a", [one(1), one(0)])];
  const scored = async (updatesPerBatch: number, hasReference: boolean) => {
    const { ranks, of } = fakeRanks({ hasReference });
    await trainBatch(ranks, { groups }, settingsOf({ "train.updates_per_batch": updatesPerBatch }), 0);
    return of("score").map((params) => params.as);
  };
  expect(await scored(1, false)).toEqual([]);
  expect(await scored(2, true)).toEqual(["old", "ref"]);
});

test("the gradient norm is the largest of a batch's updates", async () => {
  const norms = [2, 7, 3];
  const { ranks } = fakeRanks({ answer: (update) => ({ ...okay(), gradientNorm: norms[update - 1]! }) });
  const groups = [group("a", [one(1), one(0)]), group("b", [one(1), one(0)])];
  const { metrics } = await trainBatch(ranks, { groups }, settingsOf({ "train.updates_per_batch": 3 }), 0);
  expect(metrics.grad_norm).toBe(7);
});

test("rewards are clipped before baselines; a reward that is no number is an error with its id", async () => {
  const values = await advantages([group("a", [one(1000), one(0)])], rloo);
  expect(values["a.0/0"]).toBe(10);
  await expect(advantages([group("a", [one(Number.NaN), one(0)])])).rejects.toThrow("rollout a.0 has the reward NaN");
});

test("a trained token without a behaviour log-probability is an error with its row", async () => {
  const broken = segment(3);
  broken.logprobs[3] = Number.NaN;
  const groups = [group("a", [{ reward: 1, segments: [broken] }, one(0)])];
  await expect(advantages(groups)).rejects.toThrow("row a.0/0 trains token 3, whose behaviour log-probability is NaN");
});

describe("reward and advantage on their way to the tokens", () => {
  /** A rollout of two turns, of 2 tokens and of 4, the second in a row of its own. */
  const twoTurns = (first: number, second: number) => {
    const [one, two] = [segment(2), segment(4)];
    one.turns[0]!.reward = first;
    two.turns[0]!.reward = second;
    return { reward: first + second, segments: [one, two] };
  };

  test("a turn's reward is its own; what is clipped or lost goes to the last turn", async () => {
    const seen: Parameters<TrainSettings["estimate"]>[0][] = [];
    const estimate: TrainSettings["estimate"] = (rollouts) => {
      seen.push(rollouts);
      return rollouts.map(() => 0);
    };
    const overlong = { "reward.overlong_buffer_len": 8, "reward.overlong_penalty_factor": 2, "data.max_len": 8 };
    const keys = { "reward.clip_range": [-2, 2], ...overlong };
    await advantages([group("a", [twoTurns(1, 3), twoTurns(0, 0)])], estimate, keys);
    // By hand: 4 is clipped to 2; the longer row has 6 of 8 tokens, so 6 / 8 of the penalty of 2 is lost.
    expect(seen[0]![0]).toMatchObject({ reward: 0.5, tokens: 6 });
    const turnsOf = (index: number) => seen[0]![index]!.turns.map(({ reward, tokens }) => ({ reward, tokens }));
    expect(turnsOf(0)).toEqual([
      { reward: 1, tokens: 2 },
      { reward: -0.5, tokens: 4 },
    ]);
    expect(turnsOf(1).map(({ reward }) => reward)).toEqual([0, -1.5]);
  });

  test("advantages of turns reach their tokens, weighted by length and clipped at last", async () => {
    const estimate = () => [[1, -3], 5];
    const groups = [group("a", [twoTurns(1, 0), { reward: 1, segments: [segment(2)] }])];
    expect(await advantages(groups, estimate)).toEqual({ "a.0/0": 1, "a.0/1": -3, "a.1/0": 5 });
    // By hand: 6 and 2 tokens of alpha 1 weigh 8 / 2 / 6 and 8 / 2 / 2.
    const keys = { "algo.advantage.length_alpha": 1, "algo.advantage.clip": 4 };
    const values = await advantages(groups, estimate, keys);
    expect(values["a.0/0"]).toBeCloseTo(2 / 3, 6);
    expect(values).toMatchObject({ "a.0/1": -2, "a.1/0": 4 });
  });

  test("the KL to the reference is a cost of each turn, for every estimator", async () => {
    const groups = [group("a", [one(1), one(0)])];
    const kl = { "algo.kl.init_coef": 0.1, "algo.kl.use_loss": false, "algo.kl.estimator": "k1" };
    const { ranks, of } = fakeRanks({ hasReference: true });
    const seen: number[] = [];
    const estimate: TrainSettings["estimate"] = (rollouts) => {
      seen.push(
        ...rollouts.map(({ reward }) => reward),
        ...rollouts.flatMap(({ turns }) => turns.map((t) => t.reward)),
      );
      return rollouts.map(() => 0);
    };
    await trainBatch(ranks, { groups }, settingsOf(kl, { estimate }), 0);
    // By hand: 4 tokens of d = 0.5, times 0.1.
    [0.8, -0.2, 0.8, -0.2].forEach((value, index) => {
      expect(seen[index]).toBeCloseTo(value, 6);
    });
    expect(of("score").map(({ as }) => as)).toEqual(["old", "ref"]);
    expect(await advantages(groups, rloo, { "algo.kl.use_loss": false })).toEqual({ "a.0/0": 1, "a.1/0": -1 });
    expect(of("update")[0]).toMatchObject({ klCoef: 0.1 });
  });

  test("what a row's tokens count comes from its update's aggregation", async () => {
    const { ranks, of } = fakeRanks();
    const groups = [group("a", [one(1, 2), one(0, 6)]), group("b", [one(1, 4), one(0, 4)])];
    await trainBatch(ranks, { groups }, settingsOf({ "actor.loss_agg_mode": "seq-mean-token-mean" }), 0);
    const byRow = Object.fromEntries(of("putAdvantages")[0]!.rows.map(({ id, share }) => [id, share]));
    expect(byRow).toEqual({ "a.0/0": 2, "a.1/0": 4 / 6, "b.0/0": 1, "b.1/0": 1 });
  });

  test.each([
    ["too few rollouts", [1], "1 values for 2 rollouts"],
    ["too many rollouts", [1, 2, 3], "3 values for 2 rollouts"],
    ["nothing", undefined, "no values for 2 rollouts"],
    ["a promise", Promise.resolve([1, 2]), "no values for 2 rollouts"],
    ["no number", [1, Number.NaN], "[NaN,NaN] for the 2 turns of rollout a.1"],
    ["text", [1, "2"], "[2] for the 2 turns of rollout a.1"],
    ["null", [1, null], "[] for the 2 turns of rollout a.1"],
    ["too few turns", [1, [1]], "[1] for the 2 turns of rollout a.1"],
    ["too many turns", [1, [1, 2, 3]], "[1,2,3] for the 2 turns of rollout a.1"],
  ])("a file that gives %s is one error with the rollout and the file", async (_, given, shown) => {
    const groups = [group("a", [one(1), twoTurns(1, 0)])];
    const result = advantages(groups, () => given as never, { "algo.advantage.estimator": "/mine/best.ts" });
    await expect(result).rejects.toThrow(`algo.advantage.estimator gave ${shown}`);
    await expect(result).rejects.toMatchObject({ position: { file: "/mine/best.ts" } });
  });
});

describe("a critic", () => {
  const keys = { "algo.advantage": { estimator: "gae", no_whiten: true }, "actor.freezing_steps": 1 };
  const gae = { estimate: advantageEstimators.gae!, criticSchedule: () => 0.1 };

  test("its values make advantages and returns of the trained tokens, and say what they explained", async () => {
    const { ranks, of } = fakeRanks();
    const groups = [group("a", [one(1), one(0)])];
    const { metrics } = await trainBatch(ranks, { groups }, settingsOf(keys, gae), 0);
    expect(of("score").map(({ as }) => as)).toEqual(["values"]);
    // By hand: values of -1.5 on all four tokens; with gamma and lambda 1 returns are the rewards.
    const rows = of("putAdvantages")[0]!.rows.map(({ advantages, returns }) => [[...advantages!], [...returns!]]);
    expect(rows).toEqual([
      [
        [0, 0, 2.5, 2.5, 2.5, 2.5],
        [0, 0, 1, 1, 1, 1],
      ],
      [
        [0, 0, 1.5, 1.5, 1.5, 1.5],
        [0, 0, 0, 0, 0, 0],
      ],
    ]);
    // The error varies as the returns do.
    expect(metrics.explained_variance).toBeCloseTo(0, 12);
    expect(metrics.value_mean).toBeCloseTo(-1.5, 12);
  });

  test("it learns at its own rate, which its metrics show, while the policy stands still", async () => {
    const answer = () => ({ ...okay(), gradientNorm: null, criticGradientNorm: 3 });
    const { ranks, of } = fakeRanks({ answer });
    const settings = settingsOf(keys, { ...gae, schedule: () => null });
    const { metrics, updates } = await trainBatch(ranks, { groups: [group("a", [one(1), one(0)])] }, settings, 0);
    expect(of("update")[0]).toMatchObject({ learningRate: null, criticLearningRate: 0.1 });
    expect(metrics).toMatchObject({ critic_lr: 0.1, critic_grad_norm: 3 });
    expect(metrics).not.toHaveProperty("lr");
    expect(updates).toBe(1);
  });

  test("the policy's schedule begins when its freezing steps are over", async () => {
    const { recipe } = settingsOf({ ...keys, "actor.adam.lr": 1, "critic.adam.lr": 2, "train.updates_per_batch": 2 });
    const { schedule, criticSchedule } = await trainSettings(recipe, 102);
    // Warm-up is 3 of the policy's 100 updates, and 4 of the critic's 102.
    expect([0, 1, 2, 3, 5].map(schedule)).toEqual([null, null, 1 / 3, 2 / 3, 1]);
    expect([0, 1, 4].map(criticSchedule!)).toEqual([0.5, 1, 2]);
  });
});

test("distillation: a token's advantage is what the teacher gives it more, times the coefficient", async () => {
  const kl = { init_coef: 0.5, use_loss: false, estimator: "k1" };
  const keys = { "algo.advantage.estimator": "on_policy_distill", "algo.kl": kl };
  const { ranks, of } = fakeRanks({ hasReference: true });
  const settings = settingsOf(keys, { estimate: advantageEstimators.on_policy_distill! });
  await trainBatch(ranks, { groups: [group("a", [one(1)])] }, settings, 0);
  // Of old -1 and the teacher -1.5.
  expect([...of("putAdvantages")[0]!.rows[0]!.advantages!]).toEqual([0, 0, -0.25, -0.25, -0.25, -0.25]);
});

describe.each(Object.keys(advantageEstimators))("contract: %s", (name) => {
  const rewards = fc.array(fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 5 }), { minLength: 1 });

  // cases C2 to C4, C7, invariant 3
  test("advantages do not depend on order, ranks, updates, budget, or rows a rollout is cut into", async () => {
    const property = fc.asyncProperty(rewards, fc.integer({ min: 1, max: 3 }), async (groups, count) => {
      const made = (cut: boolean) =>
        groups.map((members, index) =>
          group(
            `g${index}`,
            members.map((reward) => ({ reward, segments: cut ? [segment(3), segment(1)] : [segment(4)] })),
          ),
        );
      const run = async (groups: Group[], ranks: number, updatesPerBatch: number) => {
        const isTaught = name === "on_policy_distill";
        const { ranks: fake, of } = fakeRanks({ count: ranks, hasReference: isTaught });
        const estimate = advantageEstimators[name]!;
        const keys = {
          "train.updates_per_batch": updatesPerBatch,
          "algo.advantage": { estimator: name, lam: 0.5 },
          "algo.kl": { init_coef: Number(isTaught), use_loss: false, estimator: "k1" },
        };
        await trainBatch(fake, { groups }, settingsOf(keys, { estimate, maxTokensPerDevice: 20 }), 0);
        const put = of("putAdvantages").flatMap(({ rows }) => rows);
        return new Map(put.map(({ id, advantages }) => [id, advantages![2]!]));
      };
      const whole = await run(made(false), 1, 1);
      const shuffled = await run(made(false).reverse(), count, count);
      const cut = await run(made(true).reverse(), count, 1);
      for (const [id, value] of whole) {
        expect(Number.isFinite(value)).toBe(true);
        expect(shuffled.get(id)).toBeCloseTo(value, 6);
        expect(cut.get(id)).toBeCloseTo(value, 6);
      }
    });
    await fc.assert(property, { numRuns: 30 });
  });
});

test("every trained token is in exactly one update, whatever the ranks, updates and budget", async () => {
  const shape = fc.array(fc.array(fc.array(fc.nat({ max: 12 }), { maxLength: 3 }), { maxLength: 5 }), { maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(
      shape,
      fc.integer({ min: 1, max: 3 }),
      fc.integer({ min: 1, max: 3 }),
      async (shapes, count, updates) => {
        const groups = shapes.map((members, index) =>
          group(
            `g${index}`,
            members.map((segments, member) => ({ reward: member, segments: segments.map(segment) })),
          ),
        );
        const { ranks, of } = fakeRanks({ count });
        const result = await trainBatch(
          ranks,
          { groups },
          settingsOf({ "train.updates_per_batch": updates }, { maxTokensPerDevice: 20 }),
          0,
        );
        const trained = shapes.flat(2).reduce((sum, tokens) => sum + tokens, 0);
        expect(result.tokens).toBe(trained);
        const ids = of("update").flatMap((params) => params.microbatches.flat());
        expect(new Set(ids).size).toBe(ids.length);
        expect(ids.length).toBe(shapes.flat(2).filter((tokens) => tokens > 0).length);
      },
    ),
  );
});

test("turns of a rollout are counted over its rows, a shared one once; stop reasons become parts of all", async () => {
  const turn = (start: number) => ({ start, end: start + 1, callId: "c", stop: "stop", temperature: 1 }) as const;
  const whole = { ...segment(4), turns: [turn(2), turn(3), turn(5)] };
  const branch = { ...segment(4), mask: Uint8Array.of(0, 0, 2, 0, 1, 0), turns: [turn(2), turn(4)] };
  const said = group("a", [{ reward: 1, segments: [whole, branch] }, one(0), one(0), one(0)]);
  said.rollouts[3]!.stop = "max_turns";
  const { metrics } = await trainBatch(fakeRanks().ranks, { groups: [said] }, settings, 0);
  expect(metrics).toMatchObject({ turns: (4 + 1 + 1 + 1) / 4, "stop/env_done": 0.75, "stop/max_turns": 0.25 });
});
