import { existsSync, readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { AdvantageSpec, Advantages, ScoredRollout } from "./estimator.ts";
import { advantageEstimators } from "./registry.ts";

interface Case {
  name: string;
  spec: AdvantageSpec;
  /** Of each rollout: one advantage, or one a turn. */
  expected: number[][];
}

const fixture = JSON.parse(readFileSync(new URL("../fixtures/algorithms.json", import.meta.url), "utf8"))
  .advantages as { rollouts: ScoredRollout[]; cases: Case[] };

const spec: AdvantageSpec = { no_whiten: false, gamma: 1, lam: 1, pass_k: 2 };
/** Those whose baseline is the whole batch's, or is none. */
const ofBatch = ["reinforce", "flash_reinforce", "gae", "on_policy_distill"];

/** Every token is expected to be worth 0.25, and costs nothing. */
function scored(groupId: string, turns: { reward: number; tokens: number }[]): ScoredRollout {
  const total = (name: "reward" | "tokens") => turns.reduce((sum, turn) => sum + turn[name], 0);
  const told = turns.map((turn) => {
    const each = <T>(value: T) => new Array<T>(turn.tokens).fill(value);
    return { ...turn, values: each(0.25), costs: each(0) };
  });
  return { groupId, reward: total("reward"), tokens: total("tokens"), turns: told };
}

const turn = fc.record({
  reward: fc.integer({ min: -4, max: 4 }).map((value) => value / 4),
  tokens: fc.integer({ min: 1, max: 20 }),
});
const batch = fc.array(
  fc
    .tuple(fc.constantFrom("a", "b", "c", "d"), fc.array(turn, { maxLength: 3 }))
    .map(([groupId, turns]) => scored(groupId, turns)),
  { maxLength: 24 },
);

/** A list of one a turn for each rollout, whatever the estimator gives; of one a token, the turn's first. */
function perTurn(rollouts: readonly ScoredRollout[], advantages: Advantages): number[][] {
  expect(advantages.length).toBe(rollouts.length);
  return rollouts.map(({ turns }, index) => {
    const given = advantages[index]!;
    if (typeof given === "number") return turns.map(() => given);
    expect(given.length).toBe(turns.length);
    return turns.map(({ tokens }, k) => {
      const own = given[k]!;
      if (typeof own === "number") return own;
      expect(own.length).toBe(tokens);
      expect(Array.from(own).every(Number.isFinite)).toBe(true);
      return own[0]!;
    });
  });
}

function expectClose(actual: number[][], expected: number[][]): void {
  expect(actual.map(({ length }) => length)).toEqual(expected.map(({ length }) => length));
  const gaps = actual.flatMap((values, i) => values.map((value, k) => Math.abs(value - expected[i]![k]!)));
  const scale = Math.max(1, ...expected.flat().map(Math.abs));
  expect(Math.max(0, ...gaps)).toBeLessThanOrEqual(1e-9 * scale);
}

test.each(fixture.cases)("$name agrees with numpy float64, $spec", ({ name, spec, expected }) => {
  const { rollouts } = fixture;
  const wide = rollouts.map(({ turns }, index) => turns.map((_, k) => expected[index]![k] ?? expected[index]![0]!));
  expectClose(perTurn(rollouts, advantageEstimators[name]!(rollouts, spec)), wide);
});

test("every estimator is held against numpy, or has values of its own to keep in a test beside it", () => {
  const held = new Set(fixture.cases.map(({ name }) => name));
  const own = (name: string) => existsSync(new URL(`${name.replaceAll("_", "-")}.test.ts`, import.meta.url));
  expect(Object.keys(advantageEstimators).filter((name) => !held.has(name) && !own(name))).toEqual([]);
});

describe.each(Object.keys(advantageEstimators))("contract: %s", (name) => {
  const estimate = (rollouts: readonly ScoredRollout[]) =>
    perTurn(rollouts, advantageEstimators[name]!(rollouts, spec));
  const simple = (groupId: string, reward: number) => scored(groupId, [{ reward, tokens: 3 }]);

  test("case C2: a batch of equal rewards gives 0, and of groups a singleton and one without signal exactly so", () => {
    const same = ["a", "b", "b", "b"].map((groupId) => simple(groupId, 0.1 + 0.2));
    for (const value of estimate(same).flat()) expect(value).toBeCloseTo(0, 10);
    if (ofBatch.includes(name)) return;
    const others = [simple("c", 1), simple("c", 0), simple("d", -1)];
    expect(
      estimate([...same, ...others])
        .slice(0, 4)
        .flat(),
    ).toEqual([0, 0, 0, 0]);
    expect(estimate([...same, ...others]).at(-1)).toEqual([0]);
  });

  test("cases C2, C3: finite, and the same in any order", () => {
    const property = fc.property(batch, fc.infiniteStream(fc.nat()), (rollouts, keys) => {
      const order = rollouts.map((_, index) => ({ index, key: keys.next().value! })).sort((a, b) => a.key - b.key);
      const straight = estimate(rollouts);
      expect(straight.flat().every(Number.isFinite)).toBe(true);
      const shuffled = estimate(order.map(({ index }) => rollouts[index]!));
      expectClose(
        shuffled,
        order.map(({ index }) => straight[index]!),
      );
    });
    fc.assert(property);
  });

  test("case C3: one prompt under two ids is two groups, whose rewards move each other by one factor at most", () => {
    if (ofBatch.includes(name)) return;
    const group = [1, 0, 0, 0].map((reward) => simple("text under id 1", reward));
    const other = [5, -3, 2].map((reward) => simple("text under id 2", reward));
    const alone = estimate(group);
    const together = estimate([...group, ...other]).slice(0, 4);
    const factor = together[0]![0]! / alone[0]![0]!;
    expectClose(
      together,
      alone.map(([value]) => [value! * factor]),
    );
    if (!["reinforce_baseline", "turn_credit"].includes(name)) expect(factor).toBe(1);
  });

  test("case C7: the length of others' replies moves an advantage only through the weights of tokens", () => {
    const rewards = [1, 0, 0.5, 0.25];
    const alike = rewards.map((reward) => scored("a", [{ reward, tokens: 6 }]));
    const longer = rewards.map((reward) => scored("a", [{ reward, tokens: 12 }]));
    expectClose(estimate(longer), estimate(alike));
  });
});

/** The other learns from a teacher alone. */
const byReward = Object.keys(advantageEstimators).filter((name) => name !== "on_policy_distill");

test.each(byReward)("%s: better rewards in a group get greater advantages", (name) => {
  const success = fc.array(fc.boolean(), { minLength: 2, maxLength: 8 });
  const property = fc.property(success, (outcomes) => {
    const rollouts = outcomes.map((solved) => scored("a", [{ reward: Number(solved), tokens: 3 }]));
    const values = perTurn(rollouts, advantageEstimators[name]!(rollouts, spec)).flat();
    const [solved, failed] = [true, false].map((wanted) => values.filter((_, i) => outcomes[i] === wanted));
    const isLearnt = name !== "pass_k" || failed!.length >= spec.pass_k;
    if (solved!.length > 0 && failed!.length > 0 && isLearnt) {
      expect(Math.min(...solved!)).toBeGreaterThan(Math.max(...failed!));
    }
  });
  fc.assert(property);
});
