import { expect, test } from "vitest";
import { indented, shorten } from "./lists.ts";

test("a list names the first ones and counts the rest", () => {
  expect(shorten(["a", "b", "c"], 2)).toBe("a, b and 1 more");
  expect([shorten(["a", "b"], 2), shorten([], 2)]).toEqual(["a, b", ""]);
  expect(indented(["a", "b", "c"], 1)).toBe("\n    a\n    and 2 more");
  expect([indented(["a", "b"]), indented([])]).toEqual(["\n    a\n    b", ""]);
});
