import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { Model, type ModelOptions, Sampler, type SamplerOptions, setThreads } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type Decoder, readDecoder } from "../../runner/src/data/decoder.ts";
import { exportHeader } from "../../runner/src/data/model-folder.ts";
import { readSafetensorsHeader } from "../../runner/src/data/safetensors.ts";
import { step } from "./sampler-step.ts";

// The trainer is held to transformers (`mixtures.process.test.ts`), the sampler to the trainer.

const common = {
  vocab_size: 50,
  hidden_size: 32,
  intermediate_size: 24,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_experts_per_tok: 2,
};
const configs = {
  qwen3_moe: { ...common, num_experts: 6, moe_intermediate_size: 20, head_dim: 8, mlp_only_layers: [1] },
  mixtral: { ...common, num_local_experts: 4 },
};
type Family = keyof typeof configs;
const families = Object.keys(configs) as Family[];

const folder = mkdtempSync(join(tmpdir(), "molt-sampler-mixtures-"));
beforeAll(() => setThreads(1));
afterAll(() => rmSync(folder, { recursive: true }));

const decoderOf = (family: Family) => readDecoder({ ...configs[family], model_type: family }, "config.json");

/** A trainer and a sampler with the same random weights. */
async function open(family: Family, dtype: "float32" | "bfloat16" = "float32", options: Partial<SamplerOptions> = {}) {
  const { config, units } = decoderOf(family);
  const model = await Model.create({ config, units, group: null, trainable: true, dtype });
  await model.initialize(7);
  const file = join(folder, `${family}.safetensors`);
  await model.save(file, exportHeader(units));
  const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 128, dtype, routes: true, ...options });
  const { entries } = readSafetensorsHeader(file);
  await sampler.load(entries.map(({ name, offset, shape }) => ({ name, file, offset, dtype: "F32" as const, shape })));
  return { config, model, sampler };
}

/** What was sampled from each prompt, greedily or not, and the experts of all tokens but the last. */
async function sample(sampler: Sampler, prompts: number[][], count: number, uniforms: number[]) {
  const found = prompts.map((tokens) => ({ tokens: [...tokens], logprobs: [] as number[], routes: [] as number[] }));
  for (let i = 0; i < count; i++) {
    const items = found.map(({ tokens }, sequence) => {
      return { sequence, tokens: i === 0 ? tokens : [tokens.at(-1)!], uniform: uniforms[i]! };
    });
    const result = await step(sampler, items);
    found.forEach(({ tokens, logprobs, routes }, at) => {
      tokens.push(result.tokens[at]!);
      logprobs.push(result.logprobs[at]!);
      routes.push(...result.routes![at]!);
    });
  }
  for (const sequence of prompts.keys()) sampler.free(sequence);
  return found;
}

/** The trainer's log-probabilities of what was sampled, row by row, with and without its routes. */
async function score(
  model: Model,
  rows: Awaited<ReturnType<typeof sample>>,
  { config }: { config: Decoder["config"] },
) {
  const choices = config.moe!.layers.reduce((a, b) => a + b) * config.moe!.expertsPerToken;
  const cu = [0];
  for (const { tokens } of rows) cu.push(cu.at(-1)! + tokens.length);
  const targets = rows.flatMap(({ tokens, logprobs }) =>
    tokens.map((_, t) => (t + 1 >= tokens.length - logprobs.length ? (tokens[t + 1] ?? -1) : -1)),
  );
  const packed = {
    tokens: Int32Array.from(rows.flatMap(({ tokens }) => tokens)),
    cu: Int32Array.from(cu),
    targets: Int32Array.from(targets),
    temperatures: new Float32Array(targets.length).fill(1),
  };
  const routes = Int16Array.from(rows.flatMap((row) => [...row.routes, ...Array(choices).fill(-1)]));
  const [live, replayed] = [await model.forward(packed, false), await model.forward({ ...packed, routes }, false)];
  const chosen = (logp: Float32Array) => [...logp].filter((_, t) => targets[t]! >= 0);
  return {
    live: chosen(await live.logp.data()),
    replayed: chosen(await replayed.logp.data()),
    mismatch: replayed.routeMismatch,
    compared: routes.length - rows.length * choices,
  };
}

const gaps = (a: number[], b: number[]) => a.map((value, i) => Math.abs(value - b[i]!));

describe.each(families)("a sampled %s", (family) => {
  it.each([false, true])("has the trainer's log-probabilities on its routes (plain: %s)", async (plain) => {
    const opened = await open(family, "float32", { plain });
    const { model, sampler } = opened;
    const token = fc.nat(common.vocab_size - 1);
    const prompts = fc.array(fc.array(token, { minLength: 1, maxLength: 9 }), { minLength: 1, maxLength: 4 });
    const uniform = fc.double({ min: 0, max: 0.999, noNaN: true });
    let [differing, compared] = [0, 0];
    await fc.assert(
      fc.asyncProperty(prompts, fc.array(uniform, { minLength: 4, maxLength: 4 }), async (given, uniforms) => {
        const rows = await sample(sampler, given, 4, uniforms);
        const scores = await score(model, rows, opened);
        const sampled = rows.flatMap(({ logprobs }) => logprobs);
        expect(Math.max(...gaps(scores.replayed, sampled))).toBeLessThan(1e-4);
        expect(scores.mismatch.compared).toBe(scores.compared);
        if (scores.mismatch.differing === 0) expect(scores.replayed).toEqual(scores.live);
        differing += scores.mismatch.differing;
        compared += scores.compared;
      }),
      { numRuns: 20 },
    );
    // But for near ties, which sums of another order decide otherwise.
    expect(differing / compared).toBeLessThan(0.005);
    model.dispose();
    sampler.dispose();
  });

  it("takes the same experts token by token as in one go", async () => {
    const { config, model, sampler } = await open(family);
    const tokens = Array.from({ length: 20 }, (_, i) => (i * 17 + 3) % 50);
    const { routes } = await step(sampler, [{ sequence: 0, tokens }]);
    const single: number[] = [];
    for (const token of tokens) {
      single.push(...(await step(sampler, [{ sequence: 1, tokens: [token] }])).routes![0]!);
    }
    expect(single).toEqual([...routes![0]!]);
    const { numExperts, expertsPerToken, layers } = config.moe!;
    expect(single.length).toBe(20 * layers.filter((layer) => layer === 1).length * expertsPerToken);
    expect(new Set(single)).toEqual(new Set(Array.from({ length: numExperts }, (_, i) => i)));
    model.dispose();
    sampler.dispose();
  });

  it("is near its bf16 trainer on its routes", async () => {
    const opened = await open(family, "bfloat16");
    const prompts = [
      [3, 1, 4, 1, 5],
      [9, 2],
      [6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3],
    ];
    const rows = await sample(opened.sampler, prompts, 6, [0.1, 0.9, 0.5, 0.3, 0.7, 0.2]);
    const { replayed } = await score(opened.model, rows, opened);
    const error = gaps(
      replayed,
      rows.flatMap(({ logprobs }) => logprobs),
    );
    expect(Math.max(...error)).toBeLessThan(0.05);
    opened.model.dispose();
    opened.sampler.dispose();
  });
});

it("a dense model has no routes to tell", async () => {
  const dense = { ...common, model_type: "llama" };
  const { config, units } = readDecoder(dense, "config.json");
  await expect(Sampler.create({ config, units, pageSize: 4, numPages: 4, routes: true })).rejects.toThrow(
    "only a mixture of experts has routes",
  );
});

it("a mixture without its experts' parameters is refused", async () => {
  const { config, units } = decoderOf("mixtral");
  const options: ModelOptions = { config, units, group: null, trainable: false };
  const bare = units.map(({ experts: _, ...unit }) => unit);
  await expect(Model.create({ ...options, units: bare })).rejects.toThrow(
    "layer 0 has 12 parameters of experts by the config, but 0 were described",
  );
});
