import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { type CorrectionSpec, correct } from "./correction.ts";

const fixture = JSON.parse(readFileSync(new URL("../fixtures/algorithms.json", import.meta.url), "utf8")).corrections;
const cases = fixture.cases as (CorrectionSpec & { weights: number[]; outside: number })[];
const input = () => ({
  old: Float32Array.from(fixture.old),
  behaviour: Float32Array.from(fixture.behaviour),
  trained: Uint8Array.from(fixture.trained),
  cu: Int32Array.from(fixture.cu),
});

describe.each(cases)("$gate $level $mode $threshold", ({ weights, outside, ...spec }) => {
  test("agrees with numpy float64", () => {
    const result = correct(spec, input());
    expect(result.outside).toBe(outside);
    weights.forEach((expected, t) => {
      // float32 inputs: relative error of exp(d) is |d| times theirs.
      expect(Math.abs(result.weights[t]! - expected)).toBeLessThanOrEqual(3e-6 * Math.max(1, Math.abs(expected)));
    });
  });

  test("case C5: reads no masked slot", () => {
    const clean = correct(spec, input());
    for (const poison of [1e6, Number.NaN]) {
      const poisoned = input();
      poisoned.trained.forEach((trained, t) => {
        if (trained === 0) poisoned.old[t] = poisoned.behaviour[t] = poison;
      });
      expect(correct(spec, poisoned)).toEqual(clean);
    }
  });

  test("invariant 2: equal policies weigh every trained token 1", () => {
    const { old, ...rest } = input();
    const same = correct(spec, { ...rest, old, behaviour: old });
    expect(same).toEqual({ weights: Float32Array.from(fixture.trained), outside: 0 });
  });

  test("invariant 3: a row's weights do not depend on the rows packed with it", () => {
    const { old, behaviour, trained, cu } = input();
    const whole = correct(spec, input()).weights;
    for (let row = 0; row + 1 < cu.length; row++) {
      const cut = <T extends Float32Array | Uint8Array>(values: T) => values.slice(cu[row], cu[row + 1]) as T;
      const alone = { old: cut(old), behaviour: cut(behaviour), trained: cut(trained) };
      const { weights } = correct(spec, { ...alone, cu: Int32Array.of(0, alone.old.length) });
      expect(weights).toEqual(cut(whole));
    }
  });
});

test("off leaves every trained token its weight", () => {
  const spec: CorrectionSpec = { level: "off", mode: "mask", gate: "ratio", threshold: [0.5, 5] };
  expect(correct(spec, input())).toEqual({ weights: Float32Array.from(fixture.trained), outside: 0 });
});
