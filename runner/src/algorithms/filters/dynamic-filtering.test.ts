import { expect, test } from "vitest";
import { groupFilters, solveRates } from "./dynamic-filtering.ts";

test("drop and refill name why a group leaves; off keeps all", () => {
  const groups = [[1, 0], [0.5, 0.5, 0.5], [1]];
  for (const name of ["drop", "refill"] as const) {
    expect(groups.map(groupFilters[name])).toEqual([null, "no_signal", "singleton"]);
  }
  expect(groups.map(groupFilters.off)).toEqual([null, null, null]);
});

test("the histogram counts groups by mean reward", () => {
  expect(solveRates([1, 0, 0.3333, 0, 0.3334])).toBe("mean reward by group: 0.00 x 2, 0.33 x 2, 1.00 x 1");
});
