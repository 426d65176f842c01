import assert from "node:assert/strict";
import { test } from "node:test";
import { loadFunction } from "molt-runner/testing";

const FUNCTION = await loadFunction(new URL("./FILE.ts", import.meta.url));

test("NAME: a success in four gets what its failures lose; groups do not mix, one without signal gets 0", () => {
  const rollouts = [1, 0, 0, 0, 3, 3].map((reward, index) => {
    return { groupId: index < 4 ? "a" : "b", reward, tokens: 5, turns: [{ reward, tokens: 5 }] };
  });
  const advantages = FUNCTION(rollouts, { no_whiten: false, gamma: 1, pass_k: 4 });
  // By hand.
  assert.deepEqual(Array.from(advantages), [0.75, -0.25, -0.25, -0.25, 0, 0]);
});
