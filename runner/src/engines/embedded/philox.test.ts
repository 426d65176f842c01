import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { philox, uniform } from "./philox.ts";

describe("philox", () => {
  // Known answers of the authors' Random123 library, kat_vectors: philox4x32, 10 rounds.
  it.each([
    [[0, 0, 0, 0], [0, 0], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"],
    [Array(4).fill(0xffffffff), Array(2).fill(0xffffffff), "408f276d 41c83b0e a20bc7c6 6d5451fd"],
    [[0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0], "d16cfe09 94fdcceb 5001e420 24126ea1"],
  ])("gives the published answer for counter %j and key %j", (counter, key, answer) => {
    const words = philox(counter as [number, number, number, number], key as [number, number]);
    expect([...words].map((word) => word.toString(16).padStart(8, "0")).join(" ")).toBe(answer);
  });
});

describe("uniform", () => {
  it("lies in [0, 1) for every seed and position", () => {
    const seed = fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER });
    fc.assert(
      fc.property(seed, fc.nat(), (s, position) => {
        const draw = uniform(s, position);
        return draw >= 0 && draw < 1;
      }),
    );
  });

  it("has the moments of a uniform draw over positions and over seeds, high seed bits included", () => {
    const count = 20_000;
    const draws = [
      Array.from({ length: count }, (_, position) => uniform(7, position)),
      Array.from({ length: count }, (_, seed) => uniform(seed, 3)),
      Array.from({ length: count }, (_, seed) => uniform(seed * 2 ** 33, 3)),
    ];
    for (const values of draws) {
      const mean = values.reduce((sum, value) => sum + value, 0) / count;
      const square = values.reduce((sum, value) => sum + value * value, 0) / count;
      // Five standard errors: sqrt(1/12/n) and sqrt(4/45/n).
      expect(Math.abs(mean - 1 / 2)).toBeLessThan(5 * Math.sqrt(1 / 12 / count));
      expect(Math.abs(square - 1 / 3)).toBeLessThan(5 * Math.sqrt(4 / 45 / count));
    }
  });
});
