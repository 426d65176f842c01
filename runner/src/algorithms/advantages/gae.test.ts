import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { AdvantageSpec, ScoredRollout } from "./estimator.ts";
import { gae, tokenAdvantages } from "./gae.ts";

interface Case {
  spec: AdvantageSpec;
  /** Of each rollout, for each turn, one a trained token. */
  advantages: number[][][];
  returns: number[][][];
}

/** numpy float64: make_gae.py. */
const fixture = JSON.parse(readFileSync(new URL("../fixtures/gae.json", import.meta.url), "utf8")) as {
  rollouts: ScoredRollout[];
  cases: Case[];
};

function expectClose(actual: unknown[], expected: number[][][]): void {
  const [given, wanted] = [actual.flat(2) as number[], expected.flat(2)];
  expect(given.length).toBe(wanted.length);
  for (const [index, value] of wanted.entries()) expect(given[index]).toBeCloseTo(value, 9);
}

test.each(fixture.cases)("agrees with numpy float64, $spec", ({ spec, advantages, returns }) => {
  const { rollouts } = fixture;
  expectClose(gae(rollouts, spec) as number[][][], advantages);
  const found = rollouts.map((rollout) =>
    tokenAdvantages(rollout, spec).map((turn, k) => turn.map((value, t) => value + rollout.turns[k]!.values![t]!)),
  );
  expectClose(found, returns);
});

test("with lambda 1 and gamma 1 a token is credited with all that came from it on, whatever the critic said", () => {
  const turn = fc.record({
    reward: fc.double({ min: -4, max: 4, noNaN: true }),
    tokens: fc.integer({ min: 1, max: 5 }),
  });
  const property = fc.property(
    fc.array(turn, { minLength: 1, maxLength: 4 }),
    fc.infiniteStream(fc.nat(9)),
    (turns, draws) => {
      const valued = turns.map((one) => ({
        ...one,
        values: Array.from({ length: one.tokens }, () => draws.next().value!),
      }));
      const given = tokenAdvantages(
        { groupId: "a", reward: 0, tokens: 0, turns: valued },
        { no_whiten: true, gamma: 1, lam: 1, pass_k: 1 },
      );
      for (const [k, values] of given.entries()) {
        const toCome = turns.slice(k).reduce((sum, { reward }) => sum + reward, 0);
        for (const [t, value] of values.entries()) expect(value + valued[k]!.values[t]!).toBeCloseTo(toCome, 9);
      }
    },
  );
  fc.assert(property);
});
