import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Aggregation, aggregations, lengthWeights } from "./aggregation.ts";

const { tokens, weights } = JSON.parse(readFileSync(new URL("fixtures/algorithms.json", import.meta.url), "utf8"))
  .lengths as { tokens: number[]; weights: Record<string, number[]> };

const update = fc.array(
  fc.record({ groupId: fc.constantFrom("a", "b", "c"), tokens: fc.integer({ min: 1, max: 40 }) }),
  {
    minLength: 1,
    maxLength: 20,
  },
);

test.each(Object.keys(weights))("length weights of alpha %s agree with numpy float64", (alpha) => {
  const rollouts = tokens.map((count) => ({ tokens: count }));
  lengthWeights(rollouts, Number(alpha)).forEach((weight, index) => {
    expect(weight).toBeCloseTo(weights[alpha]![index]!, 10);
  });
});

describe.each(Object.keys(aggregations) as Aggregation[])("%s", (name) => {
  test("counts 1 on the average over tokens, and follows a rollout in any order", () => {
    const property = fc.property(update, (rollouts) => {
      const shares = aggregations[name](rollouts);
      const total = rollouts.reduce((sum, rollout) => sum + rollout.tokens, 0);
      const counted = rollouts.reduce((sum, rollout, index) => sum + rollout.tokens * shares[index]!, 0);
      expect(counted / total).toBeCloseTo(1, 9);
      aggregations[name]([...rollouts].reverse())
        .reverse()
        .forEach((share, index) => {
          expect(share).toBeCloseTo(shares[index]!, 9);
        });
    });
    fc.assert(property);
  });
});

test("rollouts, or prompts, count alike", () => {
  const rollouts = [
    { groupId: "a", tokens: 1 },
    { groupId: "a", tokens: 5 },
    { groupId: "b", tokens: 2 },
  ];
  // By hand: 8 tokens over 3 rollouts; over 2 prompts of 6 and 2 tokens.
  expect(aggregations["seq-mean-token-mean"](rollouts)).toEqual([8 / 3, 8 / 15, 8 / 6]);
  expect(aggregations["prompt-mean-token-mean"](rollouts)).toEqual([4 / 6, 4 / 6, 2]);
});
