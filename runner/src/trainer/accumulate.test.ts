import fc from "fast-check";
import { Model, setThreads } from "molt-native";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { aggregations } from "../algorithms/aggregation.ts";
import type { UpdateMetrics } from "../algorithms/metrics.ts";
import { accumulate } from "./accumulate.ts";
import { sftLoss } from "./fixtures/loss.ts";
import { fixture, fixtureRows, tinyModel, withFunction } from "./fixtures/tiny.ts";
import { packRows, type StoredRow, trainedTokens, unpackRows } from "./packing.ts";

let policy: Model;
let ref: Model;
let refLogprobs: Float32Array[];
const names = Object.keys(fixture.gradients);

beforeAll(async () => {
  await setThreads(1);
  policy = await load("policy");
  ref = await load("ref");
  const rows = fixtureRows();
  const { packed } = packRows(rows);
  const { logp } = await ref.forward(packed, false);
  refLogprobs = unpackRows(rows, packed.cu, await logp.data());
});
afterAll(() => {
  policy.dispose();
  ref.dispose();
});

async function load(name: "policy" | "ref"): Promise<Model> {
  const { config, units, weights } = tinyModel(name);
  const model = await Model.create({ config, units, group: null, trainable: name === "policy" });
  await model.load(weights!);
  return model;
}

function scoredRows(filler?: number): StoredRow[] {
  return fixtureRows(filler).map((row, index) => ({ ...row, ref: refLogprobs[index] }));
}

/** Gradients of all parameters after these microbatches, and their metrics. */
async function run(microbatches: StoredRow[][], spec = fixture.spec) {
  await policy.zeroGradients();
  const metrics: UpdateMetrics = { sums: {}, maxima: {} };
  for (const rows of microbatches) {
    await accumulate(policy, rows, withFunction(spec), fixture.numTokens, metrics);
  }
  const gradients: Record<string, Float32Array> = {};
  for (const name of names) gradients[name] = await policy.readGradient(name);
  return { ...metrics, gradients, norm: await policy.gradientNorm() };
}

function expectGradients(actual: Record<string, Float32Array>, expected: Record<string, ArrayLike<number>>): void {
  for (const [name, values] of Object.entries(expected)) {
    const scale = Math.max(...Array.from(values, Math.abs));
    const gaps = Array.from(values, (value, index) => Math.abs(actual[name]![index]! - value));
    expect(Math.max(...gaps), name).toBeLessThanOrEqual(2e-5 * scale);
  }
}

const chunks = <T>(items: T[], size: number) =>
  Array.from({ length: Math.ceil(items.length / size) }, (_, index) => items.slice(index * size, (index + 1) * size));

test("loss, metrics and every gradient agree with PyTorch float64", async () => {
  const { sums, gradients, norm } = await run([scoredRows()]);
  for (const [name, expected] of Object.entries(fixture.sums)) {
    expect(Math.abs(sums[name]! - expected), name).toBeLessThanOrEqual(2e-5 * Math.max(1, Math.abs(expected)));
  }
  expect(Math.abs(norm / fixture.gradientNorm - 1)).toBeLessThanOrEqual(1e-5);
  expectGradients(gradients, fixture.gradients);
});

/** The fixture's rows, each a rollout of its group, as a case aggregates them. */
function rowsOf({ aggregation }: (typeof fixture.cases)[number], filler?: number): StoredRow[] {
  const rows = scoredRows(filler);
  const counted = rows.map(({ mask }, index) => ({
    groupId: String(fixture.groups[index]),
    tokens: trainedTokens(mask),
  }));
  const shares = aggregations[aggregation](counted);
  return rows.map((row, index) => ({ ...row, share: shares[index]! }));
}

// cases C4, C5, invariants 3 and 4
describe.each(fixture.cases)("$spec.name, $aggregation, $spec.correction, KL $spec.kl.estimator", (one) => {
  const names = Object.keys(one.gradients);

  test("loss, metrics and gradients agree with PyTorch float64, for any microbatches in any order", async () => {
    const keys = fc.array(fc.nat(), { minLength: 8, maxLength: 8 });
    const property = fc.asyncProperty(keys, fc.integer({ min: 1, max: 8 }), async (order, size) => {
      const rows = rowsOf(one).sort((a, b) => order[Number(a.id.slice(4))]! - order[Number(b.id.slice(4))]!);
      const { sums, gradients } = await run(chunks(rows, size), one.spec);
      expectGradients(gradients, one.gradients);
      expect(Object.keys(sums)).toEqual(expect.arrayContaining(Object.keys(one.sums)));
      for (const [name, expected] of Object.entries(one.sums)) {
        expect(Math.abs(sums[name]! - expected), name).toBeLessThanOrEqual(5e-5 * Math.max(1, Math.abs(expected)));
      }
    });
    await fc.assert(property, { numRuns: 4 });
  });

  test.each([1e6, Number.NaN])("%s in every masked slot changes no bit", async (poison) => {
    const clean = await run(chunks(rowsOf(one, 0), 3), one.spec);
    const { gradients, sums } = await run(chunks(rowsOf(one, poison), 3), one.spec);
    expect(sums).toEqual(clean.sums);
    for (const name of names) expect(gradients[name]).toEqual(clean.gradients[name]);
  });
});

// invariant 2
test.each(["ppo", "gspo", "cispo"])("at ratio 1 the gradient of %s is the policy gradient's", async (name) => {
  const rows = fixtureRows().map(({ old: _, ...row }) => row);
  const gradientOf = (loss: string) => run([rows], { ...fixture.cases[0]!.spec, name: loss, kl: sftLoss.kl });
  expectGradients((await gradientOf(name)).gradients, (await gradientOf("importance")).gradients);
});

describe("case C4, invariant 3", () => {
  test.each([1, 2, 4, 8])(
    "microbatches of %i rows, in any order, give one gradient and one set of metrics",
    async (size) => {
      const keys = fc.array(fc.nat(), { minLength: 8, maxLength: 8 });
      const property = fc.asyncProperty(keys, async (order) => {
        const rows = scoredRows();
        rows.sort((a, b) => order[Number(a.id.slice(4))]! - order[Number(b.id.slice(4))]!);
        const { gradients, sums } = await run(chunks(rows, size));
        expectGradients(gradients, fixture.gradients);
        for (const [name, expected] of Object.entries(fixture.sums)) expect(sums[name]).toBeCloseTo(expected, 3);
      });
      await fc.assert(property, { numRuns: 6 });
    },
  );

  test("a dummy microbatch adds nothing", async () => {
    const whole = await run([scoredRows()]);
    const withDummies = await run([[], scoredRows(), []]);
    expect(withDummies).toEqual(whole);
  });
});

test.each([1e6, Number.NaN, Number.NEGATIVE_INFINITY])(
  "case C5, invariant 4: %s in every masked slot of every array changes no bit",
  async (poison) => {
    const clean = await run(chunks(scoredRows(0), 3));
    expect(await run(chunks(scoredRows(poison), 3))).toEqual(clean);
  },
);

test("case B6: rows packed together do not see each other", async () => {
  const rows = fixtureRows();
  const alone = await Promise.all(rows.map((row) => logprobs([row])));
  const changed = fixtureRows();
  changed[3]!.tokens[0] = (changed[3]!.tokens[0]! + 1) % 13;
  const [together, moved] = [await logprobs(rows), await logprobs(changed)];
  rows.forEach((_, index) => {
    together[index]!.forEach((value, t) => {
      expect(value).toBeCloseTo(alone[index]![0]![t]!, 5);
    });
    if (index !== 3) expect(moved[index]).toEqual(together[index]);
  });
  expect(moved[3]).not.toEqual(together[3]);
});

async function logprobs(rows: StoredRow[]): Promise<Float32Array[]> {
  const { packed } = packRows(rows);
  const { logp } = await policy.forward(packed, false);
  return unpackRows(rows, packed.cu, await logp.data());
}

test("sft: the mean cross entropy of the trained tokens, whatever their behaviour log-probabilities", async () => {
  const rows = fixtureRows().map(({ old: _, advantages: __, ...row }) => ({
    ...row,
    logprobs: row.logprobs.fill(Number.NaN),
  }));
  const expected = -(await logprobs(rows)).flatMap((values) => [...values]).reduce((sum, value) => sum + value, 0);
  const { sums, gradients } = await run([rows], sftLoss);
  expect(sums.policy_loss).toBeCloseTo(expected, 3);
  expect(names.every((name) => gradients[name]!.every(Number.isFinite))).toBe(true);
});
