import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Sampler, type TensorLocation } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readDecoder } from "../../runner/src/data/decoder.ts";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { type Item, step } from "./sampler-step.ts";

interface Step {
  append: number[];
  uniform: number;
  token: number;
  logprob: number;
}
interface Request {
  temperature: number;
  topK: number;
  topP: number;
  steps: Step[];
}
/** What numpy in float64 samples: see `fixtures/make_sampler.py`. */
interface Expected {
  requests: Request[];
  prompt: number[];
  probabilities: number[];
  sets: { topK: number; topP: number; ids: number[]; share: number[] }[];
}
const folder = fileURLToPath(new URL("fixtures/sampler", import.meta.url));
const expected: Expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const numPages = 64;
const pageSize = 4;
const lastUniform = 1 - 2 ** -53;

async function makeSampler(pages = numPages, weights: TensorLocation[] = tensors): Promise<Sampler> {
  const sampler = await Sampler.create({ config: decoder.config, units: decoder.units, pageSize, numPages: pages });
  await sampler.load(weights);
  return sampler;
}

/** Next tokens of `uniforms.length` fresh sequences with one prompt, 200 at a time. */
async function drawMany(sampler: Sampler, settings: { topK?: number; topP?: number }, uniforms: number[]) {
  const tokens: number[] = [];
  for (let begin = 0; begin < uniforms.length; begin += 200) {
    const items = uniforms.slice(begin, begin + 200).map((uniform, sequence) => {
      return { sequence, tokens: expected.prompt, uniform, ...settings };
    });
    tokens.push(...(await step(sampler, items)).tokens);
    for (const { sequence } of items) sampler.free(sequence);
  }
  return tokens;
}

function countsOf(tokens: number[]): number[] {
  const counts = new Array<number>(decoder.config.vocabSize).fill(0);
  for (const token of tokens) counts[token]!++;
  return counts;
}

/** Request r begins at step `starts[r]`; returns the log-probabilities, and checks all against float64. */
async function runRequests(sampler: Sampler, starts: number[]): Promise<number[][]> {
  const logprobs: number[][] = expected.requests.map(() => []);
  const end = Math.max(...expected.requests.map(({ steps }, r) => starts[r]! + steps.length));
  for (let now = 0; now < end; now++) {
    const active = expected.requests.flatMap((request, sequence) => {
      const current = request.steps[now - starts[sequence]!];
      return current ? [{ ...request, ...current, sequence, tokens: current.append }] : [];
    });
    if (active.length === 0) continue;
    const result = await step(sampler, active);
    for (const [i, { sequence, token, logprob }] of active.entries()) {
      expect(result.tokens[i], `request ${sequence} at step ${now}`).toBe(token);
      expect(Math.abs(result.logprobs[i]! - logprob)).toBeLessThan(1e-4);
      logprobs[sequence]!.push(result.logprobs[i]!);
    }
  }
  return logprobs;
}

let sampler: Sampler;
const scratch = mkdtempSync(join(tmpdir(), "molt-sampler-"));
beforeAll(async () => {
  sampler = await makeSampler(1024);
});
afterAll(() => {
  sampler.dispose();
  rmSync(scratch, { recursive: true });
});

describe("step", () => {
  it("samples what float64 samples, with its log-probabilities, mixed or one by one", async () => {
    const free = sampler.freePages();
    const steps = expected.requests.map(({ steps }) => steps.length);
    const together = await runRequests(
      sampler,
      steps.map(() => 0),
    );
    for (const r of steps.keys()) sampler.free(r);
    // Prompts come in while others run: prefill, continuation and decoding in one batch.
    const staggered = await runRequests(
      sampler,
      steps.map((_, r) => (r * 5) % 7),
    );
    for (const r of steps.keys()) sampler.free(r);
    const alone = await runRequests(
      sampler,
      steps.map((_, r) => steps.slice(0, r).reduce((a, b) => a + b, 0)),
    );
    for (const r of steps.keys()) sampler.free(r);
    expect(sampler.freePages()).toBe(free);
    const gap = (a: number[][], b: number[][]) => Math.max(...a.flat().map((x, i) => Math.abs(x - b.flat()[i]!)));
    expect(gap(together, alone)).toBeLessThan(1e-5);
    expect(gap(staggered, alone)).toBeLessThan(1e-5);
  });

  it("draws from the distribution: an even grid of draws falls on each token in its share", async () => {
    const uniforms = Array.from({ length: 10_000 }, (_, i) => (i + 0.5) / 10_000);
    const counts = countsOf(await drawMany(sampler, {}, uniforms));
    for (const [token, p] of expected.probabilities.entries()) {
      expect(Math.abs(counts[token]! - 10_000 * p), `token ${token}`).toBeLessThan(1.5);
    }
  });

  it("draws from the distribution: chi-square of 20,000 pseudo-random draws", async () => {
    let state = 1;
    // Numerical Recipes' linear congruential generator: deterministic, and good enough for this.
    const uniforms = Array.from({ length: 20_000 }, () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return state / 2 ** 32;
    });
    const counts = countsOf(await drawMany(sampler, {}, uniforms));
    // Tokens expected fewer than 5 times share a bin.
    const bins = expected.probabilities.map((p, token) => ({ wanted: 20_000 * p, found: counts[token]! }));
    const rare = bins.filter(({ wanted }) => wanted < 5);
    const sum = (key: "wanted" | "found") => rare.reduce((total, bin) => total + bin[key], 0);
    const all = [...bins.filter(({ wanted }) => wanted >= 5), { wanted: sum("wanted"), found: sum("found") }];
    const chiSquare = all.reduce((total, { wanted, found }) => total + (found - wanted) ** 2 / wanted, 0);
    // Wilson and Hilferty's approximation of the 99.9% quantile.
    const k = all.length - 1;
    const quantile = k * (1 - 2 / (9 * k) + 3.0902 * Math.sqrt(2 / (9 * k))) ** 3;
    expect(chiSquare).toBeLessThan(quantile);
  });

  it("takes the first and the last token at the ends of the draw", async () => {
    expect(await drawMany(sampler, {}, [0, lastUniform])).toEqual([0, decoder.config.vocabSize - 1]);
  });

  it.each(expected.sets)("keeps numpy's set for top_k $topK, top_p $topP", async ({ topK, topP, ids, share }) => {
    const uniforms = Array.from({ length: 4_000 }, (_, i) => (i + 0.5) / 4_000);
    const counts = countsOf(await drawMany(sampler, { topK, topP }, uniforms));
    const wanted = new Array<number>(decoder.config.vocabSize).fill(0);
    for (const [i, id] of ids.entries()) wanted[id] = 4_000 * share[i]!;
    for (const [token, count] of counts.entries()) {
      expect(Math.abs(count - wanted[token]!), `token ${token}`).toBeLessThan(wanted[token] === 0 ? 0.5 : 1.5);
    }
    expect(await drawMany(sampler, { topK, topP }, [0, lastUniform])).toEqual([ids[0], ids.at(-1)]);
  });
});

/** A decoder whose layer adds nothing: after any token the logits are `logits`. */
async function constantSampler(logits: Float32Array): Promise<Sampler> {
  const sizes = { vocab_size: logits.length, hidden_size: 2, intermediate_size: 2, num_hidden_layers: 1, head_dim: 2 };
  const heads = { num_attention_heads: 1, num_key_value_heads: 1 };
  // With this epsilon the norm of [1, 1] is [1, 1] in float32.
  const { config, units } = readDecoder({ model_type: "qwen3", rms_norm_eps: 1e-12, ...sizes, ...heads }, "test");
  const file = join(scratch, "constant.bin");
  const chunks: Float32Array[] = [];
  const locations: TensorLocation[] = [];
  let offset = 0;
  for (const { role, name, shape } of units.flatMap(({ parameters }) => parameters)) {
    const values = new Float32Array(shape.reduce((a, b) => a * b)).fill(role === "embed" || role === "norm" ? 1 : 0);
    if (role === "head") for (const [v, logit] of logits.entries()) values[2 * v] = logit;
    locations.push({ name, file, offset, dtype: "F32", shape });
    chunks.push(values);
    offset += values.byteLength;
  }
  writeFileSync(file, Buffer.concat(chunks.map((values) => Buffer.from(values.buffer))));
  const made = await Sampler.create({ config, units, pageSize: 1, numPages: 2000 });
  await made.load(locations);
  return made;
}

describe("a vocabulary of several chunks", () => {
  const temperature = 0.5;
  // Tokens at both ends and in the middle that cannot be drawn, among 2,500 of which none has more than 1%.
  const logits = Float32Array.from({ length: 2500 }, (_, v) => Math.sin(v * v) + 0.5 * Math.cos(v / 100));
  for (const v of [0, 1, 1023, 1024, 1500, 2498, 2499]) logits[v] = -200;
  const weights = Array.from(logits, (logit) => Math.exp(logit / temperature));
  const total = weights.reduce((a, b) => a + b);

  it("is inverted as float64 inverts it", async () => {
    const large = await constantSampler(logits);
    const uniforms = [0, ...Array.from({ length: 1800 }, (_, i) => (i + 0.5) / 1800), lastUniform];
    const items = uniforms.map((uniform, sequence) => ({ sequence, tokens: [3], temperature, uniform }));
    const { tokens, logprobs } = await step(large, items);
    expect([tokens[0], tokens.at(-1)]).toEqual([2, 2497]);
    const ends: number[] = [];
    for (const weight of weights) ends.push((ends.at(-1) ?? 0) + weight / total);
    for (const [i, uniform] of uniforms.entries()) {
      const token = tokens[i]!;
      expect(uniform).toBeGreaterThan((ends[token - 1] ?? 0) - 1e-6);
      expect(uniform).toBeLessThan(ends[token]! + 1e-6);
      expect(Math.abs(logprobs[i]! - Math.log(weights[token]! / total))).toBeLessThan(1e-5);
    }
    large.dispose();
  });
});

describe("pages", () => {
  it("changes nothing when they run out, and recovers", async () => {
    const small = await makeSampler(5);
    const first = expected.requests[1]!.steps; // a prompt of 5: two pages
    const second = expected.requests[5]!.steps;
    const run = async (i: number) => {
      const items = [
        { sequence: 1, tokens: first[i]!.append, temperature: 0 },
        { sequence: 2, tokens: second[i]!.append, uniform: second[i]!.uniform },
      ];
      expect([...(await step(small, items)).tokens]).toEqual([first[i]!.token, second[i]!.token]);
    };
    await run(0);
    expect(small.freePages()).toBe(1);
    // One page is left: sequence 1 alone would fit, both with a prompt of 5 do not.
    const tooMany = [
      { sequence: 1, tokens: first[1]!.append },
      { sequence: 3, tokens: [1, 2, 3, 4, 5] },
    ];
    await expect(step(small, tooMany)).rejects.toThrow(
      "out of pages: the step needs 2 more pages of 4 tokens, 1 are free",
    );
    expect(small.freePages()).toBe(1);
    await run(1);
    await run(2);
    await run(3);
    await expect(run(4)).rejects.toThrow("out of pages");
    small.free(2);
    expect(small.freePages()).toBe(3);
    // Sequence 1 goes on as if nothing had happened.
    for (const { append, token } of first.slice(4)) {
      expect([...(await step(small, [{ sequence: 1, tokens: append, temperature: 0 }])).tokens]).toEqual([token]);
    }
    small.free(1);
    small.free(77); // unknown: nothing to do
    expect(small.freePages()).toBe(5);
    small.dispose();
  });

  it("are given back when a step fails for another reason", async () => {
    const file = join(scratch, "model.safetensors");
    const head = tensors.find(({ name }) => name === "lm_head.weight")!;
    const bytes = readFileSync(head.file);
    bytes.writeFloatLE(Number.NaN, head.offset + 40);
    writeFileSync(file, bytes);
    const broken = await makeSampler(
      8,
      tensors.map((tensor) => ({ ...tensor, file })),
    );
    await expect(step(broken, [{ sequence: 4, tokens: [1, 2, 3, 4, 5] }])).rejects.toThrow(
      "sequence 4: the logits are not finite",
    );
    expect(broken.freePages()).toBe(8);
    // Good weights in place: the same sampler goes on.
    await broken.load(tensors);
    const { append, token } = expected.requests[1]!.steps[0]!;
    const { tokens } = await step(broken, [{ sequence: 4, tokens: append, temperature: 0 }]);
    expect([...tokens]).toEqual([token]);
    broken.dispose();
  });
});

describe("bad steps", () => {
  it.each<[string, Item[]]>([
    ["token 97 is not in the vocabulary of 97", [{ sequence: 0, tokens: [97] }]],
    ["token -1 is not in the vocabulary of 97", [{ sequence: 0, tokens: [3, -1] }]],
    ["sequence 0 has no new token", [{ sequence: 0, tokens: [] }]],
    [
      "sequence 6 is twice in one step",
      [
        { sequence: 6, tokens: [1] },
        { sequence: 6, tokens: [2] },
      ],
    ],
    ["temperature -1 is not in [0, inf)", [{ sequence: 0, tokens: [1], temperature: -1 }]],
    ["temperature nan is not in [0, inf)", [{ sequence: 0, tokens: [1], temperature: Number.NaN }]],
    ["top_p 0 is not in (0, 1]", [{ sequence: 0, tokens: [1], topP: 0 }]],
    ["top_k -1 is negative", [{ sequence: 0, tokens: [1], topK: -1 }]],
    ["uniform 1 is not in [0, 1)", [{ sequence: 0, tokens: [1], uniform: 1 }]],
    ["the arrays of a step do not fit together", []],
  ])("are refused: %s", async (message, items) => {
    const free = sampler.freePages();
    await expect(step(sampler, items)).rejects.toThrow(message);
    expect(sampler.freePages()).toBe(free);
  });

  it("are refused before there are weights, and after dispose", async () => {
    const { config, units } = decoder;
    const empty = await Sampler.create({ config, units, pageSize, numPages: 1 });
    await expect(step(empty, [{ sequence: 0, tokens: [1] }])).rejects.toThrow("the sampler has no complete weights");
    empty.dispose();
    expect(() => step(empty, [{ sequence: 0, tokens: [1] }])).toThrow("this sampler was disposed");
  });
});

describe("weights", () => {
  it("are refused with a tensor missing or of another shape", async () => {
    await expect(makeSampler(1, tensors.slice(1))).rejects.toThrow(
      "tensor 'model.embed_tokens.weight' of shape [97, 32] is not among the 24 tensors",
    );
    const turned = tensors.map((tensor, i) => (i === 0 ? { ...tensor, shape: [32, 97] } : tensor));
    await expect(makeSampler(1, turned)).rejects.toThrow(/has shape \[32, 97\].*wants \[97, 32\]/);
  });

  it("have a checksum of their values", async () => {
    const again = await makeSampler(1);
    expect(await sampler.checksum()).toMatch(/^[0-9a-f]{16}$/);
    expect(await again.checksum()).toBe(await sampler.checksum());
    again.dispose();
  });
});
