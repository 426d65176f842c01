import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import type { ModelOptions } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { freePort } from "../../runner/src/launchers/free-port.ts";

/** What `rank.mjs` prints. */
interface Seen {
  shardSize: number;
  initialized: string;
  loaded: string;
  logp: number[];
  gradients: Record<string, number[]>;
  norm: number;
  stepped: Record<string, number[]>;
  trained: string;
  restored: string;
  broken: string[];
}

const folder = fileURLToPath(new URL("fixtures/model/untied", import.meta.url));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
const scratch = mkdtempSync(join(tmpdir(), "molt-ranks-"));
const children: ReturnType<typeof spawn>[] = [];
afterAll(() => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(scratch, { recursive: true });
});

/** The fixture's rows begin..end, with what weighs their loss. `untargeted` makes them a dummy. */
function share(begin: number, end: number, untargeted = false) {
  const from = expected.cu[begin];
  const cut = (values: number[]) => values.slice(from, expected.cu[end]);
  const { tokens, temperatures, a, b } = expected;
  const targets = untargeted ? cut(expected.targets).map(() => -1) : cut(expected.targets);
  const cu = expected.cu.slice(begin, end + 1).map((boundary: number) => boundary - from);
  return { rows: { tokens: cut(tokens), cu, targets, temperatures: cut(temperatures) }, a: cut(a), b: cut(b) };
}

/** Runs one process a share; resolves with what each saw. */
async function run(shares: ReturnType<typeof share>[], name: string, model: Partial<ModelOptions> = {}) {
  const port = await freePort();
  const script = fileURLToPath(new URL("rank.mjs", import.meta.url));
  const outputs = shares.map(async (given, rank) => {
    const child = spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] });
    children.push(child);
    const group = { rank, worldSize: shares.length, serveStore: rank === 0, prefix: "model", timeoutMs: 60_000 };
    const options = { host: "127.0.0.1", port, ...group };
    const { config, units } = decoder;
    const job = { config, units, tensors, options, model, save: join(scratch, name), ...given };
    child.stdin.end(JSON.stringify(job));
    return JSON.parse(await text(child.stdout)) as Seen;
  });
  return Promise.all(outputs);
}

/** Over all parameters, relative to the largest value of each. */
function largestRelative(actual: Record<string, number[]>, wanted: Record<string, number[]>): number {
  return Math.max(
    ...Object.entries(wanted).map(([name, values]) => {
      const scale = Math.max(...values.map(Math.abs));
      return Math.max(...values.map((value, i) => Math.abs(actual[name]![i]! - value) / scale));
    }),
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
    expect(Math.max(...together.map((value, i) => Math.abs(value - one.logp[i]!)))).toBeLessThan(2e-6);
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
  const [one] = await run([share(0, 6)], "bf16-one", { dtype: "bfloat16" });
  const ranks = await run([share(0, 3), share(3, 6)], "bf16-two", { dtype: "bfloat16" });
  expect(new Set(ranks.map(({ loaded }) => loaded))).toEqual(new Set([one!.loaded]));
  const gaps = ranks.flatMap(({ logp }) => logp).map((value, t) => Math.abs(value - one!.logp[t]!));
  // Another batch may take another kernel, whose rounding differs.
  expect(Math.max(...gaps)).toBeLessThan(0.03);
  expect(largestRelative(ranks[0]!.gradients, one!.gradients)).toBeLessThan(0.05);
  expect(ranks[0]!.gradients).toEqual(ranks[1]!.gradients);
});

// case C4
it("2 ranks that keep graphs and gathered weights see the gradients of 1 that recomputes", async () => {
  const [one] = await run([share(0, 6)], "full-one");
  const ranks = await run([share(0, 3), share(3, 6)], "none-two", { gradientCheckpoint: "none" });
  for (const rank of ranks) expect(largestRelative(rank.gradients, one!.gradients)).toBeLessThan(3e-6);
});
