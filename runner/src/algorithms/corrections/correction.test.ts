import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { type CorrectionSpec, checkCorrection, correct } from "./correction.ts";

const fixture = JSON.parse(readFileSync(new URL("../fixtures/algorithms.json", import.meta.url), "utf8")).corrections;
const cases = fixture.cases as (CorrectionSpec & { weights: number[]; outside: number })[];
const input = () => ({
  old: Float32Array.from(fixture.old),
  behaviour: Float32Array.from(fixture.behaviour),
  trained: Uint8Array.from(fixture.trained),
  cu: Int32Array.from(fixture.cu),
});

test.each(cases)("$level $mode $threshold agrees with numpy float64", ({ weights, outside, ...spec }) => {
  const result = correct(spec, input());
  expect(result.outside).toBe(outside);
  weights.forEach((expected, t) => {
    // float32 inputs: relative error of exp(d) is |d| times theirs.
    expect(Math.abs(result.weights[t]! - expected)).toBeLessThanOrEqual(2e-6 * Math.max(1, Math.abs(expected)));
  });
});

test.each(cases)("case C5: $level $mode reads no masked slot", ({ weights: _, outside: __, ...spec }) => {
  const clean = correct(spec, input());
  for (const poison of [1e6, Number.NaN]) {
    const poisoned = input();
    poisoned.trained.forEach((trained, t) => {
      if (trained === 0) poisoned.old[t] = poisoned.behaviour[t] = poison;
    });
    expect(correct(spec, poisoned)).toEqual(clean);
  }
});

test("off leaves every trained token its weight", () => {
  const spec: CorrectionSpec = { level: "off", mode: "mask", threshold: [0.5, 5] };
  expect(correct(spec, input())).toEqual({ weights: Float32Array.from(fixture.trained), outside: 0 });
});

test("a sequence level goes with mask alone", () => {
  expect(() => checkCorrection({ level: "seq", mode: "clip", threshold: [0.5, 5] })).toThrow(
    "does not go with level 'seq'",
  );
  expect(() => checkCorrection({ level: "geo", mode: "mask", threshold: [0.5, 5] })).not.toThrow();
});
