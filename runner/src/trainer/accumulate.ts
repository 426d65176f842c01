import { type Model, scope, Tensor } from "molt-native";
import { correct } from "../algorithms/corrections/correction.ts";
import { objective } from "../algorithms/losses/objective.ts";
import type { LossSpec } from "../algorithms/losses/policy-loss.ts";
import { addMetrics, tokenMetrics, type UpdateMetrics } from "../algorithms/metrics.ts";
import { dummyRow, packRows, type StoredRow } from "./packing.ts";

export type { UpdateMetrics } from "../algorithms/metrics.ts";

/** Forward, loss, backward of a microbatch, into the gradient and `metrics`. Without rows, a zero-weight dummy. */
export async function accumulate(
  model: Model,
  rows: readonly StoredRow[],
  spec: LossSpec,
  numTokens: number,
  metrics: UpdateMetrics,
): Promise<void> {
  if (rows.length === 0) return runDummy(model);
  const { packed, trained, behaviour, advantages, ...scored } = packRows(rows);
  const { logp, entropy } = await model.forward(packed, true);
  const current = await logp.data();
  // Rows of a single update are not scored: the present policy, detached, is the old one.
  const old = scored.old ?? current;
  const { weights, outside } = correct(spec.correction, { old, behaviour, trained, cu: packed.cu });
  const parts = scope(() => {
    const input = {
      logp,
      entropy,
      old: Tensor.from(old),
      advantages: Tensor.from(advantages),
      weights: Tensor.from(weights),
      trained: Tensor.from(Float32Array.from(trained)),
      ref: scored.ref && Tensor.from(scored.ref),
    };
    return objective(input, spec, numTokens);
  });
  await model.backward(parts.total);
  const { sums, maxima } = tokenMetrics({ trained, logp: current, old, behaviour, entropy: await entropy.data() });
  const more = {
    advantage_mean: advantages.reduce((sum, value) => sum + value, 0),
    correction_ratio: outside,
    policy_loss: await read(parts.policy),
    ...(parts.kl && { kl: await read(parts.kl) }),
    ...(parts.clipped && { clip_ratio: await read(parts.clipped) }),
  };
  addMetrics(metrics, { sums: { ...sums, ...more }, maxima });
  for (const tensor of [logp, entropy, parts.total, parts.policy, parts.kl, parts.clipped]) tensor?.dispose();
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
