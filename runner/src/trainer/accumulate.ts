import { type Model, scope, Tensor } from "molt-native";
import { correct } from "../algorithms/corrections/correction.ts";
import { objective } from "../algorithms/losses/objective.ts";
import type { LossSpec } from "../algorithms/losses/policy-loss.ts";
import { tokenMetrics } from "../algorithms/metrics.ts";
import { dummyRow, packRows, type StoredRow } from "./packing.ts";

/** Metrics of an update on one rank, added to by each microbatch. */
export interface UpdateMetrics {
  sums: Record<string, number>;
  maxima: Record<string, number>;
}

/** One microbatch: forward, loss, backward. Its gradient is added to the model's. Without rows, a zero-weight dummy. */
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
  // Unscored rows were sampled for this one update: what the policy says now, detached, is the old policy.
  const old = scored.old ?? current;
  const { weights, outside } = correct(spec.correction, { old, behaviour, trained, cu: packed.cu });
  const parts = scope(() => {
    const ref = scored.ref && Tensor.from(scored.ref);
    const tensors = { old, advantages, weights, trained: Float32Array.from(trained) };
    const input = mapValues(tensors, (values) => Tensor.from(values));
    return objective({ logp, entropy, ref, ...input }, spec, numTokens);
  });
  await model.backward(parts.total);
  const { sums, maxima } = tokenMetrics({ trained, logp: current, old, behaviour, entropy: await entropy.data() });
  addTo(metrics.sums, {
    ...sums,
    advantage_mean: advantages.reduce((sum, value) => sum + value, 0),
    correction_ratio: outside,
    policy_loss: await read(parts.policy),
    ...(parts.kl && { kl: await read(parts.kl) }),
    ...(parts.clipped && { clip_ratio: await read(parts.clipped) }),
  });
  for (const [name, value] of Object.entries(maxima)) {
    metrics.maxima[name] = Math.max(metrics.maxima[name] ?? 0, value);
  }
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

function addTo(sums: Record<string, number>, more: Record<string, number>): void {
  for (const [name, value] of Object.entries(more)) sums[name] = (sums[name] ?? 0) + value;
}

function mapValues<K extends string, A, B>(record: Record<K, A>, change: (value: A) => B): Record<K, B> {
  const entries = Object.entries(record) as [K, A][];
  return Object.fromEntries(entries.map(([key, value]) => [key, change(value)])) as Record<K, B>;
}
