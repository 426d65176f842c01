import { expect, test } from "vitest";
import { tokenMetrics } from "./metrics.ts";

test("sums and maxima over trained tokens; case C5: masked slots are not read", () => {
  const nan = Number.NaN;
  const values = {
    trained: Uint8Array.of(1, 0, 1),
    logp: Float32Array.of(-1, nan, -2),
    old: Float32Array.of(-1.5, nan, -2),
    behaviour: Float32Array.of(-1.25, nan, -2.125),
    entropy: Float32Array.of(0.5, nan, 0.75),
    ref: Float32Array.of(-1.5, nan, -3),
  };
  const { sums, maxima } = tokenMetrics(values, (d) => 2 * d);
  const expected = { entropy: 1.25, policy_kl: -0.5, ratio_mean: Math.exp(0.5) + 1, logprob_gap_mean: 0.375 };
  expect(sums).toEqual({ ...expected, kl: 3 });
  expect(tokenMetrics({ ...values, ref: null }, (d) => d).sums).toEqual(expected);
  expect(maxima).toEqual({ logprob_gap_max: 0.25, ratio_gap_max: Math.exp(0.5) - 1 });
});
