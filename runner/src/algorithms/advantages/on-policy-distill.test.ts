import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { ScoredRollout } from "./estimator.ts";
import { onPolicyDistill } from "./on-policy-distill.ts";

test("agrees with numpy: each token's KL cost turned around, whatever the rewards", () => {
  // make_gae.py
  const { rollouts, distilled } = JSON.parse(
    readFileSync(new URL("../fixtures/gae.json", import.meta.url), "utf8"),
  ) as { rollouts: ScoredRollout[]; distilled: number[][][] };
  const spec = { no_whiten: false, gamma: 0.5, lam: 0.5, pass_k: 2 };
  expect(onPolicyDistill(rollouts, spec)).toEqual(distilled);
  const others = rollouts.map((rollout) => ({ ...rollout, reward: rollout.reward + 1 }));
  expect(onPolicyDistill(others, spec)).toEqual(distilled);
});
