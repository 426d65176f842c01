import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ScoredRollout } from "./estimator.ts";
import { advantageEstimator, advantageEstimators } from "./registry.ts";

const fixture = JSON.parse(readFileSync(new URL("../fixtures/algorithms.json", import.meta.url), "utf8"))
  .advantages as {
  rollouts: ScoredRollout[];
  expected: Record<string, number[]>;
};

const rollout = fc.record({
  groupId: fc.constantFrom("a", "b", "c", "d"),
  reward: fc.integer({ min: -4, max: 4 }).map((value) => value / 4),
  tokens: fc.integer({ min: 0, max: 20 }),
});

function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>): void {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < expected.length; i++) expect(actual[i]).toBeCloseTo(expected[i]!, 10);
}

describe.each(Object.keys(advantageEstimators))("%s", (name) => {
  const estimate = advantageEstimator(name);

  test("agrees with numpy float64", () => {
    expectClose(estimate(fixture.rollouts), fixture.expected[name]!);
  });

  test("case C2: a singleton and a group without signal give exactly 0", () => {
    const rollouts = ["a", "b", "b", "b"].map((groupId) => ({ groupId, reward: 0.1 + 0.2, tokens: 3 }));
    expect([...estimate(rollouts)]).toEqual([0, 0, 0, 0]);
  });

  test("case C3: results follow the group's id, in any order", () => {
    fc.assert(
      fc.property(fc.array(rollout, { maxLength: 24 }), fc.infiniteStream(fc.nat()), (rollouts, keys) => {
        const order = rollouts.map((_, index) => ({ index, key: keys.next().value! })).sort((a, b) => a.key - b.key);
        const shuffled = estimate(order.map(({ index }) => rollouts[index]!));
        const straight = estimate(rollouts);
        expectClose(
          shuffled,
          order.map(({ index }) => straight[index]!),
        );
      }),
    );
  });

  test("case C3: another group's rewards move a group's advantages by one common factor at most", () => {
    const group = [1, 0, 0, 0].map((reward) => ({ groupId: "text under id 1", reward, tokens: 5 }));
    const other = [5, -3, 2].map((reward) => ({ groupId: "text under id 2", reward, tokens: 5 }));
    const alone = estimate(group);
    const together = estimate([...group, ...other]);
    const factor = together[0]! / alone[0]!;
    expectClose(
      together.subarray(0, 4),
      [...alone].map((value) => value * factor),
    );
    if (name !== "reinforce_baseline") expect(factor).toBe(1);
  });

  test("advantages are finite and a group's sum to 0", () => {
    fc.assert(
      fc.property(fc.array(rollout, { maxLength: 24 }), (rollouts) => {
        const advantages = estimate(rollouts);
        for (const groupId of ["a", "b", "c", "d"]) {
          const members = advantages.filter((_, index) => rollouts[index]!.groupId === groupId);
          expect(members.reduce((sum, value) => sum + value, 0)).toBeCloseTo(0, 9);
        }
      }),
    );
  });
});

test("an unknown estimator is refused with the known names", () => {
  expect(() => advantageEstimator("constructor")).toThrow("algo.advantage.estimator: no entry 'constructor'");
});
