import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { readRope } from "./rope.ts";

interface Fixture {
  headDim: number;
  cases: { name: string; config: Record<string, unknown>; inverseFrequencies: number[]; ropeScale: number }[];
}

/** What transformers has: see `fixtures/make_rope.py`. */
const fixture: Fixture = JSON.parse(readFileSync(new URL("fixtures/rope.json", import.meta.url), "utf8"));

describe("readRope", () => {
  it.each(fixture.cases)("$name: has the numbers of transformers", ({ config, inverseFrequencies, ropeScale }) => {
    const rope = readRope(config, fixture.headDim, "config.json");
    expect(rope.inverseFrequencies).toHaveLength(fixture.headDim / 2);
    expect(rope.ropeScale).toBeCloseTo(ropeScale, 12);
    // A few units in the last place: transformers computes in float32 throughout.
    for (const [i, want] of inverseFrequencies.entries())
      expect(Math.abs(rope.inverseFrequencies[i]! / want - 1), `pair ${i}`).toBeLessThan(5e-7);
  });

  it.each([
    [{ rope_scaling: { type: "dynamic", factor: 2 } }, 'rope scaling of kind "dynamic", which is not supported'],
    [{ rope_parameters: { rope_type: "longrope" } }, 'rope scaling of kind "longrope", which is not supported'],
    [{ rope_parameters: { rope_type: "toString" } }, 'rope scaling of kind "toString", which is not supported'],
    [{ partial_rotary_factor: 0.5 }, "partial_rotary_factor is 0.5, which is not supported"],
    [{ rope_parameters: { full_attention: { rope_type: "default" } } }, "rope differs between kinds of layers"],
    [{ rope_scaling: { type: "linear" } }, "factor is missing; it must be a positive number"],
    [{ rope_scaling: { type: "yarn", factor: 2 } }, "original_max_position_embeddings is missing"],
    [{ rope_theta: "big" }, 'rope_theta is "big"; it must be a positive number'],
  ])("refuses %o", (config, message) => {
    expect(() => readRope(config, 8, "config.json")).toThrow(message);
  });
});
