import { Tensor } from "molt-native";
import { describe, expect, test } from "vitest";
import { sftLoss } from "../../trainer/fixtures/loss.ts";
import { objective } from "./objective.ts";
import type { LossSpec } from "./policy-loss.ts";
import { policyLosses } from "./registry.ts";

// Values and gradients of whole updates are held against PyTorch float64 in `trainer/accumulate.test.ts`.
const tensor = (values: number[]) => Tensor.from(Float32Array.from(values));
const spec = { ...sftLoss, name: "ppo" };
const names = Object.keys(policyLosses).filter((name) => name !== "sft");

async function expectClose(actual: Tensor, expected: number[]): Promise<void> {
  const values = await actual.data();
  expect(values.length).toBe(expected.length);
  expected.forEach((value, t) => {
    expect(Math.abs(values[t]! - value)).toBeLessThanOrEqual(3e-6 * Math.max(1, Math.abs(value)));
  });
}

const inputs = (masked: number) => ({
  logp: tensor([-1, -2, masked]),
  entropy: tensor([0.5, 0.25, masked]),
  old: tensor([-1.1, -1.9, masked]),
  rowLogRatio: tensor([0, 0, masked]),
  advantages: tensor([1, -1, masked]),
  shares: tensor([1, 2, 0]),
  weights: tensor([1, 1, 0]),
  ref: tensor([-1.5, -2, masked]),
});

test("the objective adds policy, KL and entropy by their shares over the update's tokens", async () => {
  const full: LossSpec = { ...spec, entropyCoef: 0.01, kl: { ...spec.kl, coef: 0.3 } };
  const parts = objective(inputs(0), full, policyLosses.ppo!, 8);
  // By hand: ratios e^0.1 and e^-0.1 inside the clip; the KL term is d logp, d 0.5 and 0; shares 1 and 2.
  const policy = -Math.exp(0.1) + Math.exp(-0.1);
  await expectClose(parts.policy, [policy]);
  await expectClose(parts.total, [(policy + 0.3 * 0.5 * -1 - 0.01 * (0.5 + 2 * 0.25)) / 8]);
  await expectClose(parts.clipped!, [0]);
  const inReward = objective(inputs(0), { ...full, kl: { ...full.kl, inReward: true } }, policyLosses.ppo!, 8);
  await expectClose(inReward.total, [(policy - 0.01) / 8]);
});

describe.each(names)("contract: %s", (name) => {
  const policyLoss = policyLosses[name]!;
  const full: LossSpec = { ...spec, name, dualClip: 3, entropyCoef: 0.01, kl: { ...spec.kl, coef: 0.3 } };

  test.each([1e6, Number.NaN])("case C5: %s in masked slots changes nothing", async (poison) => {
    const total = await objective(inputs(0), full, policyLoss, 8).total.data();
    expect(await objective(inputs(poison), full, policyLoss, 8).total.data()).toEqual(total);
  });

  test("invariant 2: at ratio 1 nothing is clipped", async () => {
    const logp = tensor([-1, -2, -0.5]);
    const input = { logp, old: logp, advantages: tensor([1, -1, 0]), rowLogRatio: tensor([0, 0, 0]) };
    const { clipped } = policyLoss(input, full);
    if (clipped) expect([...(await tensor([1, 1, 1]).where(clipped, 0).data())]).toEqual([0, 0, 0]);
  });
});

test.each([
  ["a mean", () => ({ loss: tensor([1]), clipped: null }), "[1] and [1]"],
  ["another clip", () => ({ loss: tensor([1, 2, 3]), clipped: tensor([1]) }), "[3] and [1]"],
  ["a tensor alone", () => tensor([1, 2, 3]), "[undefined] and [undefined]"],
  ["a promise", async () => ({ loss: tensor([1, 2, 3]), clipped: null }), "[undefined] and [undefined]"],
  ["nothing", () => undefined, "[undefined] and [undefined]"],
  ["a number", () => ({ loss: 3, clipped: null }), "[undefined] and [undefined]"],
])("a file that gives %s is one error with the file", (_, given, shown) => {
  const refused = () => objective(inputs(0), { ...spec, name: "/mine/mean.ts" }, given as never, 8);
  expect(refused).toThrow(`actor.loss_mode gave loss and clipped of shapes ${shown}, not of one value a token`);
  expect(refused).toThrow(expect.objectContaining({ position: { file: "/mine/mean.ts" } }));
});

test("sft is the cross entropy", async () => {
  const logp = tensor([-1, -2]);
  const { loss } = policyLosses.sft!({ logp, old: logp, advantages: logp, rowLogRatio: logp }, spec);
  await expectClose(loss, [1, 2]);
});
