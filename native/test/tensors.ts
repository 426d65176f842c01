import { readFileSync } from "node:fs";
import { expect } from "vitest";
import { readSafetensorsHeader } from "../../runner/src/data/safetensors.ts";

/** Tensors of a float32 file of ours. */
export function readTensors(file: string): Map<string, Float32Array> {
  const bytes = readFileSync(file);
  return new Map(
    readSafetensorsHeader(file).entries.map(({ name, offset, bytes: size }) => {
      return [name, new Float32Array(Uint8Array.from(bytes.subarray(offset, offset + size)).buffer)];
    }),
  );
}

export function largestDifference(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  expect(actual.length).toBe(expected.length);
  return Math.max(...Array.from(expected, (value, i) => Math.abs(actual[i]! - value)));
}
