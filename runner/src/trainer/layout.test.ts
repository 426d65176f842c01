import fc from "fast-check";
import type { DecoderConfig } from "molt-native";
import { describe, expect, test } from "vitest";
import type { Recipe } from "../recipe/index.ts";
import { balance } from "./balance.ts";
import { packRows, packToBudget, type StoredRow, trainedTokens, unpackRows } from "./packing.ts";
import { rowCost } from "./row-cost.ts";
import { learningRates } from "./schedule.ts";
import { cutUpdates, planUpdate } from "./update.ts";

const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { maxLength: 60 });
const rowOf = (length: number, index: number): StoredRow => ({
  id: `r${index}`,
  tokens: Int32Array.from({ length }, (_, t) => 100 * index + t),
  mask: Uint8Array.from({ length }, (_, t) => (t > 1 && t % 2 === 0 ? 1 : (t * 7) % 6 === 1 ? 4 : 0)),
  logprobs: Float32Array.from({ length }, (_, t) => -t),
  temperatures: new Float32Array(length).fill(0.5),
});
const sorted = (items: readonly StoredRow[]) => items.map((row) => row.id).sort();

describe("packing", () => {
  test("every row lands once, no microbatch is over the budget, and no two would fit together", () => {
    fc.assert(
      fc.property(sizes, fc.integer({ min: 50, max: 200 }), (lengths, budget) => {
        const rows = lengths.map(rowOf);
        const packed = packToBudget(rows, budget);
        expect(sorted(packed.flat())).toEqual(sorted(rows));
        const totals = packed.map((bin) => bin.reduce((sum, row) => sum + row.tokens.length, 0)).sort((a, b) => a - b);
        expect(Math.max(0, ...totals)).toBeLessThanOrEqual(budget);
        if (totals.length > 1) expect(totals[0]! + totals[1]!).toBeGreaterThan(budget);
      }),
    );
  });

  test("a row over the cap is an error with its id and both numbers", () => {
    expect(() => packToBudget([rowOf(5, 0), rowOf(40, 1)], 39)).toThrow(
      "row r1 has 40 tokens, train.max_tokens_per_device x fsdp.cp_size is 39",
    );
  });

  test("targets are the next token where it is trained, shifted within the row", () => {
    const row = (tokens: number[], mask: number[], temperature: number): StoredRow => ({
      id: String(tokens),
      tokens: Int32Array.from(tokens),
      mask: Uint8Array.from(mask),
      logprobs: Float32Array.from(tokens, (id) => -id),
      temperatures: new Float32Array(tokens.length).fill(temperature),
      advantages: Float32Array.from(tokens, (id) => id / 2),
    });
    // Mask 1 on a row's first token has nothing that predicts it; masks 2 to 5 are not trained.
    const batch = packRows([row([5, 6, 7, 8], [1, 0, 1, 1], 0.5), row([9, 10, 11], [0, 1, 3], 1.5)]);
    expect(batch.packed).toEqual({
      tokens: Int32Array.of(5, 6, 7, 8, 9, 10, 11),
      cu: Int32Array.of(0, 4, 7),
      targets: Int32Array.of(-1, 7, 8, -1, 10, -1, -1),
      temperatures: Float32Array.of(1, 0.5, 0.5, 1, 1.5, 1, 1),
    });
    expect(batch.trained).toEqual(Uint8Array.of(0, 1, 1, 0, 1, 0, 0));
    expect(batch.behaviour).toEqual(Float32Array.of(0, -7, -8, 0, -10, 0, 0));
    expect(batch.advantages).toEqual(Float32Array.of(0, 3.5, 4, 0, 5, 0, 0));
    expect([batch.old, batch.ref]).toEqual([null, null]);
  });

  test("unpacking undoes the shift; case C5: masked slots come out as 0 whatever they held", () => {
    fc.assert(
      fc.property(sizes, fc.constantFrom(1e6, Number.NaN), (lengths, poison) => {
        const rows = lengths.map((length, index) => {
          const row = rowOf(length, index);
          row.mask.forEach((mask, t) => {
            if (mask !== 1) row.logprobs[t] = poison;
          });
          return row;
        });
        const { packed, behaviour, trained } = packRows(rows);
        expect(trained.reduce((sum, value) => sum + value, 0)).toBe(
          rows.reduce((sum, row) => sum + trainedTokens(row.mask), 0),
        );
        unpackRows(rows, packed.cu, behaviour).forEach((values, index) => {
          const { mask } = rows[index]!;
          expect(values).toEqual(Float32Array.from(mask, (value, t) => (value === 1 ? -t : 0)));
        });
      }),
    );
  });
});

describe("balance", () => {
  test("every item lands once; bins differ by one item's cost at most", () => {
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 5 }), (costs, bins) => {
        const result = balance(costs, bins, (cost) => cost);
        expect(result.flat().sort()).toEqual([...costs].sort());
        const totals = result.map((bin) => bin.reduce((sum, cost) => sum + cost, 0));
        expect(Math.max(...totals) - Math.min(...totals)).toBeLessThanOrEqual(Math.max(0, ...costs));
      }),
    );
  });

  test("microbatches: each row once, as many on every rank, none over the cap, costs even to one microbatch", () => {
    const shapes = fc.record({
      lengths: fc.array(fc.integer({ min: 1, max: 120 }), { maxLength: 60 }),
      ranks: fc.integer({ min: 1, max: 5 }),
      contextSize: fc.integer({ min: 1, max: 3 }),
      cap: fc.integer({ min: 120, max: 400 }),
      quadratic: fc.constantFrom(0, 0.01, 1),
    });
    fc.assert(
      fc.property(shapes, ({ lengths, ranks, contextSize, cap, quadratic }) => {
        const rows = lengths.map(rowOf);
        const rowCost = (tokens: number) => tokens + quadratic * tokens ** 2;
        const plan = planUpdate(rows, { dataCount: ranks, contextSize, rowCost }, cap);
        const { microbatches } = plan;
        const tokens = (bin: StoredRow[]) => bin.reduce((sum, row) => sum + row.tokens.length, 0);
        const cost = (bin: StoredRow[]) => bin.reduce((sum, row) => sum + rowCost(row.tokens.length), 0);
        expect(sorted(microbatches.flat(2))).toEqual(sorted(rows));
        expect(plan.numTokens).toBe(rows.reduce((sum, row) => sum + trainedTokens(row.mask), 0));
        expect(microbatches.map((list) => list.length)).toEqual(
          new Array(ranks).fill(Math.ceil(packToBudget(rows, cap * contextSize).length / ranks)),
        );
        const bins = microbatches.flat();
        for (const bin of bins) expect(tokens(bin)).toBeLessThanOrEqual(cap * contextSize);
        const totals = microbatches.map((list) => list.reduce((sum, bin) => sum + cost(bin), 0));
        const dearest = Math.max(0, ...bins.map(cost));
        expect(Math.max(...totals) - Math.min(...totals)).toBeLessThanOrEqual(dearest * (1 + 1e-9));
        // The i-th of all ranks run at once: none of them costs less than any that comes later.
        for (let i = 1; i < microbatches[0]!.length; i++) {
          const [before, now] = [i - 1, i].map((at) => microbatches.map((list) => cost(list[at]!)));
          expect(Math.min(...before!)).toBeGreaterThanOrEqual(Math.max(...now!));
        }
      }),
    );
  });

  test("a row over a rank's cap fits the context group that shares it", () => {
    const cost = { dataCount: 1, rowCost: (tokens: number) => tokens };
    expect(() => planUpdate([rowOf(100, 0)], { ...cost, contextSize: 1 }, 60)).toThrow("row r0 has 100 tokens");
    expect(planUpdate([rowOf(100, 0)], { ...cost, contextSize: 2 }, 60).microbatches[0]!.length).toBe(1);
  });

  test("a row's cost has a linear and a quadratic part, which a window cuts", () => {
    // By hand. Weights of a layer: 2 x 4 x 2 (2 + 1) of attention, 3 x 4 x 8; of the head 10 x 4. Pairs of 3 tokens: 6;
    // under a window of 2: 5. A pair multiplies 2 x 2 x 2.
    const config = { hiddenSize: 4, headDim: 2, numHeads: 2, numKvHeads: 1, vocabSize: 10, intermediateSize: 8 };
    const cost = rowCost({ ...config, numLayers: 2, windows: [0, 2] } as DecoderConfig);
    expect(cost(3)).toBeCloseTo(3 + (8 * (6 + 5)) / (2 * (48 + 96) + 40), 12);
    // The second layer's router has 4 x 5, two of its experts 3 x 4 x 3 each.
    const moe = { numExperts: 5, expertsPerToken: 2, expertIntermediateSize: 3, normTopkProb: true, layers: [0, 1] };
    const ofMixture = rowCost({ ...config, numLayers: 2, windows: [0, 0], moe } as DecoderConfig);
    expect(ofMixture(3)).toBeCloseTo(3 + (8 * (6 + 6)) / (2 * 48 + 96 + 20 + 72 + 40), 12);
  });
});

test("updates: nothing is lost, rollouts stay whole, tokens are even to one rollout", () => {
  fc.assert(
    fc.property(fc.array(fc.nat({ max: 30 }), { maxLength: 40 }), fc.integer({ min: 1, max: 6 }), (tokens, count) => {
      const rollouts = tokens.map((value, id) => ({ id, tokens: value }));
      const updates = cutUpdates(rollouts, count);
      const trainable = rollouts.filter((rollout) => rollout.tokens > 0);
      expect(updates.flat().sort((a, b) => a.id - b.id)).toEqual(trainable);
      expect(updates.length).toBe(Math.min(count, trainable.length));
      const totals = updates.map((update) => update.reduce((sum, rollout) => sum + rollout.tokens, 0));
      if (totals.length > 0) {
        expect(Math.max(...totals) - Math.min(...totals)).toBeLessThanOrEqual(Math.max(...tokens));
      }
    }),
  );
});

describe("schedule", () => {
  const rates = (scheduler: "constant" | "linear" | "cosine", lr_warmup_ratio = 0.3) => {
    const actor = { adam: { lr: 0.01 }, lr_scheduler: scheduler, lr_warmup_ratio, min_lr_ratio: 0.1 };
    return learningRates(actor as Recipe["actor"], 10);
  };
  const curve = (scheduler: "constant" | "linear" | "cosine", updates: number[]) => updates.map(rates(scheduler));

  // By hand: warm-up is 3 of 10; then 7 updates from 1 to 0.1 of the rate.
  test("warm-up rises to the rate, whatever follows", () => {
    for (const scheduler of ["constant", "linear", "cosine"] as const) {
      expect(curve(scheduler, [0, 1, 2, 3])).toEqual([0.01 / 3, 0.02 / 3, 0.01, 0.01]);
    }
  });

  test("constant, linear and cosine", () => {
    expect(curve("constant", [4, 9, 99])).toEqual([0.01, 0.01, 0.01]);
    const expected = {
      linear: [0.01 * (1 - (0.9 * 1) / 7), 0.01 * (1 - (0.9 * 6) / 7), 0.001, 0.001],
      cosine: [0.00955435990556, 0.00144564009444, 0.001, 0.001],
    };
    for (const scheduler of ["linear", "cosine"] as const) {
      curve(scheduler, [4, 9, 10, 99]).forEach((rate, index) => {
        expect(rate).toBeCloseTo(expected[scheduler][index]!, 12);
      });
    }
  });

  test("without warm-up the first update has the whole rate", () => {
    expect(rates("constant", 0)(0)).toBe(0.01);
  });
});
