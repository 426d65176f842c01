import { Model, setThreads } from "molt-native";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import { accumulateValues } from "./accumulate.ts";
import { criticRows, criticFixture as fixture, tinyCritic } from "./fixtures/tiny.ts";
import { packRows, type StoredRow, unpackRows } from "./packing.ts";

let critic: Model;
const names = Object.keys(fixture.gradients);

beforeAll(async () => {
  await setThreads(1);
  critic = await load();
});
afterAll(() => critic.dispose());

async function load(headChunk?: number): Promise<Model> {
  const { weights, seed, ...options } = tinyCritic().model;
  const model = await Model.create({ ...options, group: null, trainable: true, headChunk });
  await model.initialize(seed);
  await model.load(weights!);
  return model;
}

/** Gradients of all parameters after these microbatches, and their metrics. */
async function run(microbatches: StoredRow[][], model = critic) {
  await model.zeroGradients();
  const metrics: UpdateMetrics = { sums: {}, maxima: {} };
  for (const rows of microbatches) {
    await accumulateValues(model, rows, fixture.clip, fixture.numTokens, metrics);
  }
  const gradients: Record<string, Float32Array> = {};
  for (const name of names) gradients[name] = await model.readGradient(name);
  return { ...metrics, gradients };
}

function expectGradients(actual: Record<string, Float32Array>): void {
  for (const [name, values] of Object.entries(fixture.gradients)) {
    const scale = Math.max(...values.map(Math.abs));
    const gaps = values.map((value, index) => Math.abs(actual[name]![index]! - value));
    expect(Math.max(...gaps), name).toBeLessThanOrEqual(2e-5 * scale);
  }
}

test("the head is small and of the seed; a checkpoint's weights are below it", async () => {
  const head = [...(await critic.read("score.weight"))];
  for (const [index, value] of fixture.head.entries()) expect(head[index]).toBeCloseTo(value, 6);
  expect(Math.max(...head.map(Math.abs))).toBeLessThan(0.5);
});

test("values are those of transformers' hidden states times the head", async () => {
  const rows = criticRows();
  const { packed } = packRows(rows);
  const values = await critic.values(packed, false);
  const found = unpackRows(rows, packed.cu, await values.data());
  fixture.rows.forEach(({ mask, values: expected }, index) => {
    for (const [t, trained] of mask.entries()) {
      if (trained === 1) expect(Math.abs(found[index]![t]! - expected[t]!)).toBeLessThanOrEqual(1e-5);
    }
  });
});

test("value loss, its clips and every gradient agree with PyTorch float64", async () => {
  const { sums, gradients } = await run([criticRows()]);
  expect(Math.abs(sums.value_loss! / fixture.loss - 1)).toBeLessThanOrEqual(1e-5);
  expect(sums.value_clip_ratio).toBe(fixture.clipped);
  expect(fixture.clipped).toBeGreaterThan(0);
  expectGradients(gradients);
});

// cases C4, C5, invariants 3 and 4
test.each([1e6, Number.NaN])(
  "neither microbatches, their order, a dummy nor %s in masked slots change it",
  async (poison) => {
    const rows = criticRows(poison);
    for (const microbatches of [rows.map((row) => [row]), [rows.slice(2).reverse(), [], rows.slice(0, 2)]]) {
      const { sums, gradients } = await run(microbatches);
      expect(Math.abs(sums.value_loss! / fixture.loss - 1)).toBeLessThanOrEqual(1e-5);
      expectGradients(gradients);
    }
  },
);

test("the head's chunks change nothing", async () => {
  const chunked = await load(3);
  expectGradients((await run([criticRows()], chunked)).gradients);
  chunked.dispose();
});

test("a head gives what it is for, and nothing else", async () => {
  const { packed } = packRows(criticRows());
  await expect(critic.forward(packed, false)).rejects.toThrow("a model with a value head has no log-probabilities");
});
