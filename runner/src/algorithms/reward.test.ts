import { expect, test } from "vitest";
import { clipReward, overlongPenalty } from "./reward.ts";

test("rewards are set to the bounds", () => {
  expect([-3, 0.5, 7].map((reward) => clipReward(reward, [-1, 1]))).toEqual([-1, 0.5, 1]);
});

test("the overlong penalty rises over the buffer, as DAPO's equation 13", () => {
  // L_max 20,480 and L_cache 4,096: 0 at 16,384, half way -0.5, -1 from 20,480 on.
  const lengths = [1, 16_384, 18_432, 20_480, 30_000];
  expect(lengths.map((length) => overlongPenalty(20_480 - length, 4096, 1))).toEqual([0, 0, 0.5, 1, 1]);
  expect(overlongPenalty(0, 0, 1)).toBe(0);
});
