import { fileURLToPath } from "node:url";
import { crc32 } from "node:zlib";
import { expect, test } from "vitest";
import type { Row } from "../agents/types.ts";
import { readDataset } from "./dataset.ts";

const read = async (name: string, labelKey: string) => {
  const path = fileURLToPath(new URL(`../../../recipes/quickstart/${name}.jsonl`, import.meta.url));
  return (await readDataset(path, { inputKey: "prompt", labelKey })).rows;
};
const promptOf = (row: Row) => row.messages[0]!.content!;
const digitsOf = (row: Row) => [...promptOf(row).replace("sort ", "")];
const isHeldOut = (row: Row) => crc32(promptOf(row)) % 10 === 0;

test("the quickstart's rows: held-out prompts are in none of the others, labels are digits in order", async () => {
  const warmup = await read("warmup", "reply");
  const prompts = await read("prompts", "label");
  const heldout = await read("heldout", "label");
  expect([warmup, prompts, heldout].map((rows) => rows.length)).toEqual([1000, 4800, 192]);
  expect(heldout.every(isHeldOut)).toBe(true);
  expect([...warmup, ...prompts].some(isHeldOut)).toBe(false);
  expect(new Set(heldout.map(promptOf)).size).toBe(192);
  for (const row of [...warmup, ...prompts, ...heldout]) expect(promptOf(row)).toMatch(/^sort \d{3,5}$/);
  for (const row of [...prompts, ...heldout]) {
    expect(new Set(digitsOf(row)).size).toBe(digitsOf(row).length);
    expect(row.label).toBe(digitsOf(row).sort().join(""));
  }
  for (const row of warmup) expect([...(row.label as string)].sort()).toEqual(digitsOf(row).sort());
  // Random in content: about one in 6, 24, 120 of the warm-up's replies is right by chance, 7% over all.
  const right = warmup.filter((row) => row.label === digitsOf(row).sort().join("")).length;
  expect(right).toBeLessThan(120);
});
