import { type Model, scope, Tensor } from "molt-native";
import { mean } from "../algorithms/advantages/estimator.ts";
import { correct, trainedSlots } from "../algorithms/corrections/correction.ts";
import { klEstimators } from "../algorithms/kl.ts";
import { objective, valueObjective } from "../algorithms/losses/objective.ts";
import type { LossSpec, PolicyLoss } from "../algorithms/losses/policy-loss.ts";
import { addMetrics, tokenMetrics, type UpdateMetrics } from "../algorithms/metrics.ts";
import { type Mixture, mixtureMetrics, mixtureRows } from "./mixture.ts";
import { dummyRow, packRows, type StoredRow, unpackRows } from "./packing.ts";

/** With the function that its name stands for. */
export interface Loss extends LossSpec {
  policyLoss: PolicyLoss;
  mixture?: Mixture | null;
}

/** Forward, loss, backward of a microbatch, into gradient, rows and `metrics`. Without rows, a zero-weight dummy. */
export async function accumulate(
  model: Model,
  rows: readonly StoredRow[],
  loss: Loss,
  numTokens: number,
  metrics: UpdateMetrics,
): Promise<void> {
  if (rows.length === 0) return runDummy(model);
  const { packed, trained, behaviour, advantages, shares, ref, ...scored } = packRows(rows);
  const { mixture = null } = loss;
  const mixed = mixtureRows(rows, mixture, numTokens);
  const { logp, entropy, ...found } = await model.forward({ ...packed, ...mixed }, true);
  const current = await logp.data();
  // Rows of a single update are not scored: the present policy, detached, is the old one.
  const old = scored.old ?? current;
  const { weights, outside } = correct(loss.correction, { old, behaviour, trained, cu: packed.cu });
  const parts = scope(() => {
    const input = {
      logp,
      entropy,
      old: Tensor.from(old),
      advantages: Tensor.from(advantages),
      rowLogRatio: Tensor.from(rowLogRatio(current, old, trained, packed.cu)),
      weights: Tensor.from(weights.map((weight, t) => weight * shares[t]!)),
      shares: Tensor.from(shares),
      ref: ref && Tensor.from(ref),
    };
    return objective(input, loss, loss.policyLoss, numTokens);
  });
  await model.backward(parts.total);
  const values = { trained, logp: current, old, behaviour, entropy: await entropy.data(), ref };
  const [trainerLogprobs, entropies] = [old, values.entropy].map((of) => unpackRows(rows, packed.cu, of));
  rows.forEach((row, index) => {
    Object.assign(row, { trainerLogprobs: trainerLogprobs![index], entropy: entropies![index] });
  });
  const { sums, maxima } = tokenMetrics(values, klEstimators[loss.kl.estimator]);
  const more = {
    advantage_mean: advantages.reduce((sum, value) => sum + value, 0),
    correction_ratio: outside,
    policy_loss: await read(parts.policy),
    ...(parts.clipped && { clip_ratio: await read(parts.clipped) }),
  };
  addMetrics(metrics, { sums: { ...sums, ...more }, maxima });
  addMetrics(metrics, mixtureMetrics(found, mixture, numTokens));
  for (const tensor of [logp, entropy, parts.total, parts.policy, parts.clipped]) tensor?.dispose();
}

/** As `accumulate`, of a critic. */
export async function accumulateValues(
  model: Model,
  rows: readonly StoredRow[],
  valueClip: number | null,
  numTokens: number,
  metrics: UpdateMetrics,
): Promise<void> {
  const { packed, shares, values: old, returns } = packRows(rows.length > 0 ? rows : [dummyRow()]);
  const values = await model.values(packed, true);
  const parts = scope(() => {
    const [before, towards, counts] = [old!, returns!, shares].map((of) => Tensor.from(of)) as [Tensor, Tensor, Tensor];
    return valueObjective({ values, old: before, returns: towards, shares: counts }, valueClip, numTokens);
  });
  await model.backward(parts.total);
  const sums = {
    value_loss: await read(parts.value),
    ...(parts.clipped && { value_clip_ratio: await read(parts.clipped) }),
  };
  addMetrics(metrics, { sums, maxima: {} });
  for (const tensor of [values, parts.total, parts.value, parts.clipped]) tensor?.dispose();
}

/** The mean of current - old over the trained slots of each row, at each of them. */
function rowLogRatio(current: Float32Array, old: Float32Array, trained: Uint8Array, cu: Int32Array): Float32Array {
  const means = new Float32Array(trained.length);
  for (const slots of trainedSlots(trained, cu)) {
    const average = mean(slots.map((t) => current[t]! - old[t]!));
    for (const t of slots) means[t] = average;
  }
  return means;
}

async function runDummy(model: Model): Promise<void> {
  const { logp, entropy } = await model.forward(packRows([dummyRow()]).packed, true);
  const nothing = scope(() => logp.sum().mul(0));
  await model.backward(nothing);
  for (const tensor of [logp, entropy, nothing]) tensor.dispose();
}

async function read(scalar: Tensor): Promise<number> {
  return (await scalar.data())[0]!;
}
