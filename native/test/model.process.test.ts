import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { ModelOptions } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { type Job, killRanks, largestGap, largestRelative, type Microbatch, runRanks, type Seen } from "./run-ranks.ts";

const folder = fileURLToPath(new URL("fixtures/model/untied", import.meta.url));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
const scratch = mkdtempSync(join(tmpdir(), "molt-ranks-"));
afterAll(() => {
  killRanks();
  rmSync(scratch, { recursive: true });
});

/** The fixture's rows begin..end, with what weighs their loss. `untargeted` makes them a dummy. */
function share(begin: number, end: number, untargeted = false): Microbatch {
  const from = expected.cu[begin];
  const cut = (values: number[]) => values.slice(from, expected.cu[end]);
  const { tokens, temperatures, a, b } = expected;
  const targets = untargeted ? cut(expected.targets).map(() => -1) : cut(expected.targets);
  const cu = expected.cu.slice(begin, end + 1).map((boundary: number) => boundary - from);
  return { rows: { tokens: cut(tokens), cu, targets, temperatures: cut(temperatures) }, a: cut(a), b: cut(b) };
}

interface Setting extends Partial<Job> {
  windows?: number[];
}

/** Each share is the microbatches of one data index. */
async function run(shares: (Microbatch | Microbatch[])[], name: string, { windows, ...job }: Setting = {}) {
  const config = { ...decoder.config, windows: windows ?? decoder.config.windows };
  const { units } = decoder;
  return runRanks(
    shares.map((given) => [given].flat()),
    { config, units, tensors, save: join(scratch, name), ...job },
  );
}

// case C4
describe.each([
  ["2 ranks with three rows each", [share(0, 3), share(3, 6)]],
  ["2 ranks of which one has no target", [share(0, 6), share(1, 3, true)]],
  ["3 ranks that do not divide the parameters", [share(0, 1), share(1, 4), share(4, 6)]],
])("%s, against 1 rank", (name, shares) => {
  let one: Seen;
  let ranks: Seen[];
  beforeAll(async () => {
    [one] = (await run([share(0, 6)], "one")) as [Seen];
    ranks = await run(shares, name);
  });

  it("cut the parameters evenly and hold the same weights", () => {
    for (const rank of ranks) {
      expect(rank.shardSize).toBeLessThan(one.shardSize / ranks.length + decoder.units.length);
      expect(rank.initialized).toBe(one.initialized);
      expect(rank.loaded).toBe(one.loaded);
    }
    expect(readFileSync(join(scratch, name)).equals(readFileSync(join(scratch, "one")))).toBe(true);
  });

  it("see the same log-probabilities and gradients", () => {
    const total = one.logp.length;
    const together = ranks.flatMap(({ logp }) => logp).slice(0, total);
    expect(largestGap(together, one.logp)).toBeLessThan(2e-6);
    for (const rank of ranks) {
      expect(largestRelative(rank.gradients, one.gradients)).toBeLessThan(3e-6);
      expect(rank.norm / one.norm).toBeCloseTo(1, 6);
    }
  });

  it("take the same step, and save and restore their shards bit for bit", () => {
    for (const rank of ranks) {
      expect(largestRelative(rank.stepped, one.stepped)).toBeLessThan(3e-6);
      expect(rank.trained).toBe(ranks[0]!.trained);
      expect(rank.restored).toBe(rank.trained);
    }
  });

  // case C8
  it("name a gradient that is broken on one of them", () => {
    for (const rank of [one, ...ranks]) expect(rank.broken).toEqual(["lm_head.weight"]);
  });
});

// case C4
it("2 ranks in bf16 gather rounded weights, and reduce in float32", async () => {
  const [one] = await run([share(0, 6)], "bf16-one", { model: { dtype: "bfloat16" } });
  const ranks = await run([share(0, 3), share(3, 6)], "bf16-two", { model: { dtype: "bfloat16" } });
  expect(new Set(ranks.map(({ loaded }) => loaded))).toEqual(new Set([one!.loaded]));
  const gaps = ranks.flatMap(({ logp }) => logp).map((value, t) => Math.abs(value - one!.logp[t]!));
  // Another batch may take another kernel, whose rounding differs.
  expect(Math.max(...gaps)).toBeLessThan(0.03);
  expect(largestRelative(ranks[0]!.gradients, one!.gradients)).toBeLessThan(0.05);
  expect(ranks[0]!.gradients).toEqual(ranks[1]!.gradients);
});

// case C4
describe("2 ranks see the gradients of 1 that recomputes all", () => {
  const halves = [
    [share(0, 1), share(1, 3)],
    [share(3, 5), share(5, 6)],
  ];
  let one: Seen;
  beforeAll(async () => {
    [one] = (await run([share(0, 6)], "full-one")) as [Seen];
  });

  it.each<[name: string, model: Partial<ModelOptions>]>([
    ["keeping graphs and gathered weights", { gradientCheckpoint: "none" }],
    ["keeping gathered weights", { reshardAfterForward: false }],
    ["keeping some products and attention, and summing once", { gradientCheckpoint: "selective", deferReduce: true }],
  ])("%s", async (name, model) => {
    for (const rank of await run(halves, name, { model })) {
      expect(largestRelative(rank.gradients, one.gradients)).toBeLessThan(3e-6);
      expect(rank.norm / one.norm).toBeCloseTo(1, 6);
      expect(rank.broken).toEqual(["lm_head.weight"]);
    }
  });
});

// The fixture's rows have 1 to 7 tokens: some parts are empty.
describe.each<[name: string, setting: Setting]>([
  ["context parallel", { windows: [3, 0] }],
  ["context parallel, selective", { model: { gradientCheckpoint: "selective", deferReduce: true } }],
])("%s, against 1 rank", (title, setting) => {
  let one: Seen;
  beforeAll(async () => {
    [one] = (await run([share(0, 6)], `${title} one`, { ...setting, steps: 3 })) as [Seen];
  });

  it.each<[name: string, cp: number, shares: Microbatch[]]>([
    ["2 parts x 2", 2, [share(0, 3), share(3, 6)]],
    ["2 parts x 2, of which one has a token and no target", 2, [share(0, 6), share(2, 3, true)]],
    ["4 parts x 1", 4, [share(0, 6)]],
  ])("%s", async (name, cp, shares) => {
    const ranks = await run(shares, `${title} ${name}`, { ...setting, cp, steps: 3 });
    const whole = shares.flatMap((_, data) => ranks[data * cp]!.logp).slice(0, one.logp.length);
    expect(largestGap(whole, one.logp)).toBeLessThan(5e-5);
    for (const [index, rank] of ranks.entries()) {
      expect(rank.logp).toEqual(ranks[index - (index % cp)]!.logp);
      expect(largestRelative(rank.gradients, one.gradients)).toBeLessThan(1e-5);
      expect(largestRelative(rank.stepped, one.stepped)).toBeLessThan(1e-5);
      expect(rank.norm / one.norm).toBeCloseTo(1, 5);
    }
  });
});
