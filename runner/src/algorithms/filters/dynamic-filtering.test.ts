import { expect, test } from "vitest";
import { groupFilters } from "./dynamic-filtering.ts";

test("drop names why a group leaves; off keeps all", () => {
  const groups = [[1, 0], [0.5, 0.5, 0.5], [1]];
  expect(groups.map(groupFilters.drop)).toEqual([null, "no_signal", "singleton"]);
  expect(groups.map(groupFilters.off)).toEqual([null, null, null]);
});
