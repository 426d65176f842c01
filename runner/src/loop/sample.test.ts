import { expect, test } from "vitest";
import type { Group, Rollout } from "../agents/types.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { sampleOf, showsSample } from "./sample.ts";

/** Ids are code points. */
const tokenizer = {
  decodeBatch: async (ids: number[][]) => ids.map((some) => String.fromCodePoint(...some)),
} as Tokenizer;

function groupOf(prompt: string, reply: string): Group {
  const tokens = Int32Array.from([...prompt, ...reply], (text) => text.codePointAt(0)!);
  const start = [...prompt].length;
  const turns = [{ start, end: start + 1 }];
  const rollout = { rolloutId: "a/0", reward: 0.5, segments: [{ tokens, turns }] } as unknown as Rollout;
  return { rollouts: [rollout] } as unknown as Group;
}

test("the first reply parts the prompt from the rest; both are cut to a length, by characters", async () => {
  const whole = { type: "sample", step: 4, rolloutId: "a/0", reward: 0.5 };
  expect(await sampleOf(4, [groupOf("find b", "get c")], tokenizer)).toEqual({
    ...whole,
    prompt: "find b",
    reply: "get c",
  });
  const cut = await sampleOf(4, [groupOf(`a${"😀".repeat(120)}`, `${"é".repeat(400)}z`)], tokenizer);
  expect(cut).toEqual({ ...whole, prompt: `…${"😀".repeat(120)}`, reply: `${"é".repeat(400)}…` });
  expect(await sampleOf(4, [{ rollouts: [] } as unknown as Group], tokenizer)).toBeNull();
});

test("samples are shown at powers of two", () => {
  const shown = Array.from({ length: 40 }, (_, step) => step + 1).filter(showsSample);
  expect(shown).toEqual([1, 2, 4, 8, 16, 32]);
});
