// Mixtures of experts over meshes of processes, held to one process (which mixtures.process.test.ts holds to
// transformers).
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { readDecoder } from "../../runner/src/data/decoder.ts";
import { type Job, killRanks, largestGap, largestRelative, type Microbatch, runRanks, type Seen } from "./run-ranks.ts";

const configJson = {
  architectures: ["Qwen3MoeForCausalLM"],
  model_type: "qwen3_moe",
  vocab_size: 37,
  hidden_size: 16,
  intermediate_size: 24,
  moe_intermediate_size: 12,
  num_experts: 4,
  num_experts_per_tok: 2,
  norm_topk_prob: true,
  decoder_sparse_step: 1,
  mlp_only_layers: [1],
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 8,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  hidden_act: "silu",
  max_position_embeddings: 64,
  initializer_range: 0.3,
  tie_word_embeddings: false,
};
const { config, units } = readDecoder(configJson, "config.json");
const scratch = mkdtempSync(join(tmpdir(), "molt-mixture-"));
afterAll(() => {
  killRanks();
  rmSync(scratch, { recursive: true });
});

const lengths = [5, 3, 1, 9, 2, 6];

/** Rows of seeded tokens, each with its own weights in the loss, whatever rows lie beside it. */
function share(...rows: number[]): Microbatch {
  const draw = (row: number, t: number, salt: number) => ((row * 7919 + t * 104729 + salt * 15485863) % 1009) / 1009;
  const positions = rows.flatMap((row) => Array.from({ length: lengths[row]! }, (_, t) => [row, t] as const));
  const cu = [0];
  for (const row of rows) cu.push(cu.at(-1)! + lengths[row]!);
  const of = (salt: number) => positions.map(([row, t]) => draw(row, t, salt));
  return {
    rows: {
      tokens: of(1).map((value) => Math.floor(value * 37)),
      cu,
      targets: of(2).map((value) => Math.floor(value * 38) - 1),
      temperatures: of(3).map((value) => 0.5 + value),
      balance: rows.map((row) => 0.1 * (row + 1)),
    },
    a: of(4).map((value) => value - 0.5),
    b: of(5).map((value) => value - 0.5),
  };
}

/** Of a row without weight in the loss. */
function dummy(): Microbatch {
  const { rows, a, b } = share(2);
  return { rows: { ...rows, targets: [-1], balance: [0] }, a: a.map(() => 0), b: b.map(() => 0) };
}

const every = share(0, 1, 2, 3, 4, 5);
const quarters = [[share(0)], [share(1, 2), share(3)], [share(4, 5)], [dummy()]];
const halves = [[share(0, 1, 2), share(3)], [share(4, 5)]];

async function run(shares: Microbatch[][], name: string, job: Partial<Job>): Promise<Seen[]> {
  return runRanks(shares, { config, units, save: join(scratch, name), steps: 3, ...job });
}

let one: Seen;
beforeAll(async () => {
  [one] = (await run([[every]], "one", {})) as [Seen];
});

// `npm run test:distributed` has every mesh of 4.
it.each<[dp: number, cp: number, ep: number, shares: Microbatch[][]]>([
  [2, 1, 2, halves],
  [1, 2, 2, [[every]]],
  [4, 1, 2, quarters],
  [2, 2, 4, halves],
  [1, 4, 1, [[every]]],
])("dp %i, cp %i, ep %i: losses, gradients and three steps of one process", async (dp, cp, ep, shares) => {
  const model = cp === 2 ? ({ gradientCheckpoint: "selective", deferReduce: true } as const) : {};
  const name = `${dp} ${cp} ${ep}`;
  const microbatches = Math.max(...shares.map(({ length }) => length));
  const even = shares.map((given) => [...given, ...Array.from({ length: microbatches - given.length }, dummy)]);
  const ranks = await run(even, name, { cp, ep, model });
  expect(readFileSync(join(scratch, name)).equals(readFileSync(join(scratch, "one")))).toBe(true);
  expect(ranks[0]!.unwritten).toContain("cannot be written: No such file or directory");
  for (const rank of ranks.slice(1)) expect(rank.unwritten).toBe(null);
  for (const rank of ranks) {
    expect(rank.initialized).toBe(one.initialized);
    expect(largestRelative(rank.gradients, one.gradients)).toBeLessThan(1e-5);
    expect(largestRelative(rank.stepped, one.stepped)).toBeLessThan(2e-5);
    expect(rank.norm / one.norm).toBeCloseTo(1, 5);
    expect(rank.trained).toBe(ranks[0]!.trained);
    expect(rank.restored).toBe(rank.trained);
    expect(rank.broken).toEqual(["lm_head.weight"]);
  }
  const tokens = shares.map((given) => given.reduce((sum, { a }) => sum + a.length, 0));
  const seen = tokens.flatMap((count, data) => ranks[data * cp]!.logp.slice(0, count));
  expect(largestGap(seen, one.logp)).toBeLessThan(5e-5);
  if (dp === 1) expect(ranks[1]!.balance / one.balance).toBeCloseTo(1, 5);
});
