import type { DecoderConfig, MoeConfig } from "molt-native";
import { expect, test } from "vitest";
import { type Mixture, mixtureMetrics, mixtureRows } from "./mixture.ts";
import type { StoredRow } from "./packing.ts";

const moe: MoeConfig = {
  numExperts: 8,
  expertsPerToken: 2,
  expertIntermediateSize: 4,
  normTopkProb: true,
  layers: [0, 1, 1],
};
const config = { numLayers: 3, moe } as DecoderConfig;
const mixture: Mixture = { config, moe, balanceCoef: 0.5, replaysRoutes: true };

function row(id: string, mask: number[], routes?: number[]): StoredRow {
  const none = new Float32Array(mask.length);
  const tokens = Int32Array.from(mask);
  const given = routes && { routes: Int16Array.from(routes) };
  return { id, tokens, mask: Uint8Array.from(mask), logprobs: none, temperatures: none, ...given };
}

test("routes are those of the mixture's layers, row after row, and unknown where a row has none", () => {
  const known = row("a", [0, 1], [0, 0, 1, 2, 3, 4, 0, 0, 5, 6, -1, -1]);
  const { routes } = mixtureRows([known, row("b", [0])], mixture, 1);
  expect(routes).toEqual(Int16Array.of(1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1));
  expect(() => mixtureRows([row("c", [0, 1], [0, 0, 1, 2])], mixture, 1)).toThrow(
    "row c has 4 routes for 2 tokens; the model has 3 layers of 2 experts a token",
  );
  expect(mixtureRows([known], { ...mixture, replaysRoutes: false, balanceCoef: 0 }, 1)).toEqual({});
  expect(mixtureRows([known], null, 1)).toEqual({});
});

test("a row's balance loss weighs what its trained tokens are of the update's", () => {
  // Of a row's first token there is nothing to train: 2 and 1 trained tokens of 4.
  const { balance } = mixtureRows([row("a", [1, 1, 1]), row("b", [0, 1])], mixture, 4);
  expect(balance).toEqual(Float32Array.of(0.5 * (2 / 4), 0.5 * (1 / 4)));
});

test("metrics: the balance loss without its weight, and what part of the routes the live choice lacks", () => {
  const result = { balance: 0.3, routeMismatch: { differing: 3, compared: 12 } };
  expect(mixtureMetrics(result, mixture, 4)).toEqual({
    sums: { balance_loss: (0.3 / 0.5) * 4 },
    maxima: {},
    means: { route_mismatch: [3, 12] },
  });
});
