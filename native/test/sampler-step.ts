import type { Sampler } from "molt-native";

/** One sequence's part of a step; what is left out asks for nothing. */
export interface Item {
  sequence: number;
  tokens: number[];
  temperature?: number;
  topK?: number;
  topP?: number;
  uniform?: number;
  score?: 0 | 1;
}

export function step(sampler: Sampler, items: Item[]) {
  const cu = [0];
  for (const { tokens } of items) cu.push(cu.at(-1)! + tokens.length);
  return sampler.step({
    sequences: Int32Array.from(items, ({ sequence }) => sequence),
    cu: Int32Array.from(cu),
    tokens: Int32Array.from(items.flatMap(({ tokens }) => tokens)),
    temperatures: Float32Array.from(items, ({ temperature }) => temperature ?? 1),
    topP: Float32Array.from(items, ({ topP }) => topP ?? 1),
    topK: Int32Array.from(items, ({ topK }) => topK ?? 0),
    uniforms: Float64Array.from(items, ({ uniform }) => uniform ?? 0),
    promptLogprobs: Uint8Array.from(items, ({ score }) => score ?? 0),
  });
}
