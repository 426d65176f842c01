import assert from "node:assert/strict";
import { test } from "node:test";
import { loadFunction, tensorOf } from "molt-runner/testing";

const FUNCTION = await loadFunction(new URL("./FILE.ts", import.meta.url));

test("NAME: at ratio 1 a token's loss is its advantage turned round, at ratio 2 twice that", async () => {
  const logp = await tensorOf([-1, -1]);
  const input = { logp, old: await tensorOf([-1, -1 - Math.LN2]), advantages: await tensorOf([0.5, -1]) };
  const { loss } = FUNCTION(
    { ...input, rowLogRatio: logp },
    {
      name: "NAME",
      epsClip: [0.2, 0.2],
      dualClip: null,
      entropyCoef: 0,
      kl: { coef: 0, estimator: "k1", inReward: false },
      correction: { level: "off", mode: "mask", gate: "ratio", threshold: [0.5, 5] },
    },
  );
  // By hand.
  assert.deepEqual(
    Array.from(await loss.data(), (value) => Number(value.toFixed(5))),
    [-0.5, 2],
  );
});
