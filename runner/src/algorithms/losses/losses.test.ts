import { readFileSync } from "node:fs";
import { Tensor } from "molt-native";
import { describe, expect, test } from "vitest";
import { klEstimators } from "../kl.ts";
import { objective } from "./objective.ts";
import type { LossSpec } from "./policy-loss.ts";
import { ppo } from "./ppo.ts";
import { policyLoss } from "./registry.ts";

const fixture = JSON.parse(readFileSync(new URL("../fixtures/algorithms.json", import.meta.url), "utf8"));
const tensor = (values: number[]) => Tensor.from(Float32Array.from(values));
const spec: LossSpec = {
  name: "ppo",
  epsClip: [0.2, 0.2],
  dualClip: null,
  entropyCoef: 0,
  kl: { coef: 0, estimator: "k3" },
  correction: { level: "off", mode: "mask", threshold: [0.5, 5] },
};

async function expectClose(actual: Tensor, expected: number[]): Promise<void> {
  const values = await actual.data();
  expect(values.length).toBe(expected.length);
  expected.forEach((value, t) => {
    expect(Math.abs(values[t]! - value)).toBeLessThanOrEqual(3e-6 * Math.max(1, Math.abs(value)));
  });
}

describe("ppo agrees with numpy float64", () => {
  const { logp, old, advantages, cases } = fixture.ppo;
  test.each(cases as { epsClip: [number, number]; dualClip: number | null; loss: number[]; clipped: boolean[] }[])(
    "clip $epsClip, dual clip $dualClip",
    async ({ epsClip, dualClip, loss, clipped }) => {
      const input = { logp: tensor(logp), old: tensor(old), advantages: tensor(advantages) };
      const output = ppo(input, { ...spec, epsClip, dualClip });
      await expectClose(output.loss, loss);
      const ones = tensor(loss.map(() => 1));
      expect([...(await ones.where(output.clipped!, 0).data())]).toEqual(clipped.map(Number));
    },
  );
});

test.each(["k1", "k2", "k3"] as const)("%s agrees with numpy float64", async (name) => {
  await expectClose(klEstimators[name](tensor(fixture.kl.d)), fixture.kl[name]);
});

describe("objective", () => {
  const inputs = (masked: number) => ({
    logp: tensor([-1, -2, masked]),
    entropy: tensor([0.5, 0.25, masked]),
    old: tensor([-1.1, -1.9, masked]),
    advantages: tensor([1, -1, masked]),
    weights: tensor([1, 0.5, masked]),
    trained: tensor([1, 1, 0]),
    ref: tensor([-1.5, -2, masked]),
  });
  // By hand: ratios e^0.1, e^-0.1; surrogates e^0.1 and -e^-0.1 (inside the clip), weights 1 and 0.5; k1 of 0.5 and 0.
  const expected = (-Math.exp(0.1) + 0.5 * Math.exp(-0.1) + 0.3 * 0.5 - 0.01 * 0.75) / 8;
  const full: LossSpec = { ...spec, entropyCoef: 0.01, kl: { coef: 0.3, estimator: "k1" } };

  test("adds policy, KL and entropy over the update's tokens", async () => {
    const parts = objective(inputs(0), full, 8);
    await expectClose(parts.total, [expected]);
    await expectClose(parts.kl!, [0.5]);
    await expectClose(parts.clipped!, [0]);
  });

  test.each([1e6, Number.NaN])("case C5: %s in masked slots changes nothing", async (poison) => {
    await expectClose(objective(inputs(poison), full, 8).total, [expected]);
  });
});

test("sft is the cross entropy", async () => {
  const logp = tensor([-1, -2]);
  const { loss } = policyLoss("sft")({ logp, old: logp, advantages: logp }, spec);
  await expectClose(loss, [1, 2]);
});
