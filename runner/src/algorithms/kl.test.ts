import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { adaptedKlCoef, klEstimators } from "./kl.ts";

const { d, ...expected } = JSON.parse(readFileSync(new URL("fixtures/algorithms.json", import.meta.url), "utf8")).kl;

test.each(["k1", "k2", "k3"] as const)("%s agrees with numpy float64", (name) => {
  (d as number[]).forEach((gap, index) => {
    expect(klEstimators[name](gap)).toBeCloseTo(expected[name][index], 12);
  });
});

test("the coefficient moves towards its target, by a fifth of rollouts / horizon at most", () => {
  // By hand, as Ziegler et al.'s equation: error clip(kl / target - 1, -0.2, 0.2), factor 1 + error * n / horizon.
  expect(adaptedKlCoef(0.1, 0.6, 0.1, 1000, 100)).toBeCloseTo(0.102, 12);
  expect(adaptedKlCoef(0.1, 0.11, 0.1, 1000, 100)).toBeCloseTo(0.101, 12);
  expect(adaptedKlCoef(0.1, -1, 0.1, 1000, 100)).toBeCloseTo(0.098, 12);
  expect(adaptedKlCoef(0.1, 0.1, 0.1, 1000, 100)).toBe(0.1);
  // A step of more rollouts than a horizon never turns its sign.
  expect(adaptedKlCoef(0.1, 0, 0.1, 100, 1024)).toBeCloseTo(0.08, 12);
});
