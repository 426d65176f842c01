/**
 * `npm run bench:loss [FOLDER]`: what the loss in TypeScript costs of a microbatch on SmolLM2 (or the model in FOLDER):
 * 8 rows of 96 tokens, all but 16 of each trained, with every term on. The model's forward and backward are timed by
 * themselves; all the rest is the loss: packing, correction, tensors, objective, reading its values, metrics. Of
 * backward its part is that of some twenty kernels over `[T]`.
 */
import { fileURLToPath } from "node:url";
import { type Model, Model as NativeModel, setThreads } from "molt-native";
import { policyLosses } from "../src/algorithms/losses/registry.ts";
import type { UpdateMetrics } from "../src/algorithms/metrics.ts";
import { readModelFolder } from "../src/data/model-folder.ts";
import { accumulate, type Loss } from "../src/trainer/accumulate.ts";
import type { StoredRow } from "../src/trainer/packing.ts";
import { percentile } from "./measure.ts";
import { smolLm2 } from "./models.ts";

const [count, length, prompt, repetitions] = [8, 96, 16, 3];
const folder = process.argv[2] ?? (await smolLm2(fileURLToPath(new URL("../../..", import.meta.url))));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const { config, units } = decoder;

const rows = Array.from({ length: count }, (_, row): StoredRow => {
  const values = (of: (t: number) => number) => Float32Array.from({ length }, (_, t) => of(t));
  return {
    id: `row ${row}`,
    tokens: Int32Array.from({ length }, (_, t) => 3 + ((row * 7919 + t * 104729) % 499)),
    mask: Uint8Array.from({ length }, (_, t) => Number(t >= prompt)),
    temperatures: values(() => 1),
    logprobs: values((t) => -2 - (t % 7) / 10),
    old: values((t) => -2 - (t % 5) / 10),
    ref: values((t) => -2 - (t % 3) / 10),
    advantages: values(() => row / count - 0.5),
  };
});
const loss: Omit<Loss, "name" | "policyLoss"> = {
  epsClip: [0.2, 0.2],
  dualClip: 3,
  entropyCoef: 0.01,
  kl: { coef: 0.01, estimator: "k3", inReward: false },
  correction: { level: "token", mode: "mask", gate: "ratio", threshold: [0.5, 5] },
};

await setThreads(1);
const model = await NativeModel.create({ config, units, group: null, trainable: true });
await model.load(tensors);
let inModel = 0;
async function timed<T>(work: Promise<T>): Promise<T> {
  const startedAt = performance.now();
  const result = await work;
  inModel += performance.now() - startedAt;
  return result;
}
const watched = {
  forward: (...args: Parameters<Model["forward"]>) => timed(model.forward(...args)),
  backward: (...args: Parameters<Model["backward"]>) => timed(model.backward(...args)),
} as Model;

for (const name of ["ppo", "gspo"]) {
  const parts: number[] = [];
  const millis: number[] = [];
  for (let repetition = 0; repetition <= repetitions; repetition++) {
    inModel = 0;
    const metrics: UpdateMetrics = { sums: {}, maxima: {} };
    const startedAt = performance.now();
    const whole = { ...loss, name, policyLoss: policyLosses[name]! };
    await accumulate(watched, rows, whole, count * (length - prompt), metrics);
    const all = performance.now() - startedAt;
    await model.zeroGradients();
    if (repetition === 0) continue; // warms up
    millis.push(all - inModel);
    parts.push((all - inModel) / all);
  }
  const percent = (share: number) => `${(percentile(parts, share) * 100).toFixed(2)}%`;
  const spread = `${percent(0)} to ${percent(1)}`;
  console.log(`${name}: ${percentile(millis, 0.5).toFixed(1)} ms, ${percent(0.5)} of a microbatch (${spread})`);
}
model.dispose();
