import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { AdamW, Model, type PackedRows, Tensor } from "molt-native";
import { describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { largestDifference, readTensors } from "./tensors.ts";

/** What a float64 decoder says: see `fixtures/make_model.py`. */
interface Expected {
  tokens: number[];
  cu: number[];
  targets: number[];
  temperatures: number[];
  /** The loss is the sum of a · logp + b · entropy. */
  a: number[];
  b: number[];
  logp: number[];
  entropy: number[];
  transformersLogp: number[];
  adamw: { rates: number[]; scale: number; beta1: number; beta2: number; eps: number; weightDecay: number };
}

function fixture(kind: string) {
  const folder = fileURLToPath(new URL(`fixtures/model/${kind}`, import.meta.url));
  const expected: Expected = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
  const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
  const rows: PackedRows = {
    tokens: Int32Array.from(expected.tokens),
    cu: Int32Array.from(expected.cu),
    targets: Int32Array.from(expected.targets),
    temperatures: Float32Array.from(expected.temperatures),
  };
  return { folder, expected, decoder, tensors, rows };
}

type Fixture = ReturnType<typeof fixture>;

async function makeModel(
  { decoder, tensors }: Fixture,
  options: { trainable?: boolean; headChunk?: number; gradientCheckpoint?: "full" | "selective" | "none" } = {},
) {
  const { config, units } = decoder;
  const model = await Model.create({ config, units, group: null, trainable: true, ...options });
  await model.load(tensors);
  return model;
}

async function backwardOnce(model: Model, { rows, expected }: Fixture, scale = 1): Promise<void> {
  const { logp, entropy } = await model.forward(rows, true);
  const a = Tensor.from(Float32Array.from(expected.a, (value) => value * scale));
  const b = Tensor.from(Float32Array.from(expected.b, (value) => value * scale));
  await model.backward(a.mul(logp).add(b.mul(entropy)).sum());
}

async function scores(model: Model, rows: PackedRows) {
  const { logp, entropy } = await model.forward(rows, false);
  return { logp: await logp.data(), entropy: await entropy.data() };
}

const names = ({ decoder }: Fixture) => decoder.units.flatMap((unit) => unit.parameters.map(({ name }) => name));

/** Rows end to end, every next token a target. */
function pack(rows: number[][]): PackedRows {
  const cu = [0];
  for (const row of rows) cu.push(cu.at(-1)! + row.length);
  const targets = rows.flatMap((row) => row.map((_, t) => row[t + 1] ?? -1));
  return {
    tokens: Int32Array.from(rows.flat()),
    cu: Int32Array.from(cu),
    targets: Int32Array.from(targets),
    temperatures: new Float32Array(targets.length).fill(1),
  };
}

describe.each(["tied", "untied"])("a small random Qwen3, %s head", (kind) => {
  const given = fixture(kind);

  it("has the log-probabilities and entropies of float64 and of transformers", async () => {
    const { logp, entropy } = await scores(await makeModel(given), given.rows);
    expect(largestDifference(logp, given.expected.logp)).toBeLessThan(1e-5);
    expect(largestDifference(entropy, given.expected.entropy)).toBeLessThan(1e-5);
    expect(largestDifference(logp, given.expected.transformersLogp)).toBeLessThan(2e-5);
  });

  it("has the gradient of every parameter, of both outputs", async () => {
    const model = await makeModel(given);
    await backwardOnce(model, given);
    const expected = readTensors(join(given.folder, "gradients.safetensors"));
    let squares = 0;
    for (const name of names(given)) {
      const want = expected.get(name)!;
      const scale = Math.max(...want.map(Math.abs));
      expect(scale, name).toBeGreaterThan(1e-3);
      expect(largestDifference(await model.readGradient(name), want) / scale, name).toBeLessThan(2e-5);
      squares += want.reduce((sum, value) => sum + value ** 2, 0);
    }
    expect((await model.gradientNorm()) / Math.sqrt(squares)).toBeCloseTo(1, 5);
  });

  it.each(["selective", "none"] as const)("has the same outputs and gradients with %s checkpointing", async (kind) => {
    const [full, kept] = [await makeModel(given), await makeModel(given, { gradientCheckpoint: kind })];
    expect(await scores(kept, given.rows)).toEqual(await scores(full, given.rows));
    const expected = readTensors(join(given.folder, "gradients.safetensors"));
    for (const model of [full, kept]) await backwardOnce(model, given);
    for (const name of names(given)) {
      const [one, other] = [await full.readGradient(name), await kept.readGradient(name)];
      const scale = Math.max(...expected.get(name)!.map(Math.abs));
      expect(largestDifference(other, one) / scale, name).toBeLessThan(1e-6);
      expect(largestDifference(other, expected.get(name)!) / scale, name).toBeLessThan(2e-5);
    }
  });

  it("adds gradients up until they are zeroed", async () => {
    const model = await makeModel(given);
    await backwardOnce(model, given, 0.25);
    await backwardOnce(model, given, 0.75);
    for (const [name, want] of readTensors(join(given.folder, "gradients.safetensors"))) {
      const scale = Math.max(...want.map(Math.abs));
      expect(largestDifference(await model.readGradient(name), want) / scale, name).toBeLessThan(2e-5);
    }
    await model.zeroGradients();
    expect(await model.gradientNorm()).toBe(0);
  });

  it("follows torch.optim.AdamW", async () => {
    const model = await makeModel(given);
    const { rates, scale, ...options } = given.expected.adamw;
    const optimizer = new AdamW(model, options);
    for (const rate of rates) {
      await backwardOnce(model, given);
      await optimizer.step(rate, scale);
      await model.zeroGradients();
    }
    expect(optimizer.stepCount).toBe(rates.length);
    for (const [name, want] of readTensors(join(given.folder, "trained.safetensors"))) {
      expect(largestDifference(await model.read(name), want), name).toBeLessThan(2e-5);
    }
  });

  // case I2
  it("gives equal results for head chunks of 1, S-1, S and S+1", async () => {
    const selected = given.expected.targets.filter((target) => target >= 0).length;
    const whole = await scores(await makeModel(given), given.rows);
    const expected = readTensors(join(given.folder, "gradients.safetensors"));
    for (const headChunk of [1, selected - 1, selected, selected + 1]) {
      const model = await makeModel(given, { headChunk });
      const chunked = await scores(model, given.rows);
      expect(largestDifference(chunked.logp, whole.logp)).toBeLessThan(2e-6);
      expect(largestDifference(chunked.entropy, whole.entropy)).toBeLessThan(2e-6);
      await backwardOnce(model, given);
      for (const [name, want] of expected) {
        const scale = Math.max(...want.map(Math.abs));
        expect(largestDifference(await model.readGradient(name), want) / scale, name).toBeLessThan(2e-5);
      }
    }
  });
});

describe("packed rows", () => {
  const given = fixture("untied");
  const row = fc.array(fc.nat(36), { minLength: 1, maxLength: 12 });

  // case B6
  it("do not see each other", async () => {
    const model = await makeModel(given);
    const { rows, expected } = given;
    const before = await scores(model, rows);
    const tokens = rows.tokens.slice();
    tokens[1] = (tokens[1]! + 1) % 37;
    const after = await scores(model, { ...rows, tokens });
    expect(after.logp.slice(0, expected.cu[1])).not.toEqual(before.logp.slice(0, expected.cu[1]));
    expect(after.logp.slice(expected.cu[1])).toEqual(before.logp.slice(expected.cu[1]));
    expect(after.entropy.slice(expected.cu[1])).toEqual(before.entropy.slice(expected.cu[1]));
  });

  // case B6
  it("score as each row alone, in any order", async () => {
    const model = await makeModel(given);
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 8 }), async (list) => {
        const packed = await scores(model, pack(list));
        const alone: number[] = [];
        for (const item of list) alone.push(...(await scores(model, pack([item]))).logp);
        expect(largestDifference(packed.logp, alone)).toBeLessThan(1e-5);
      }),
      { numRuns: 25 },
    );
  });

  // case C8
  it("without any target give zeros, whose backward reaches every unit and adds nothing", async () => {
    const model = await makeModel(given);
    const rows = { ...given.rows, targets: new Int32Array(given.rows.targets.length).fill(-1) };
    const { logp, entropy } = await model.forward(rows, true);
    expect(new Set(await logp.data())).toEqual(new Set([0]));
    await model.backward(logp.add(entropy).sum());
    expect(await model.gradientNorm()).toBe(0);
  });

  it.each<[string, Partial<PackedRows>, RegExp]>([
    ["a token outside the vocabulary", { tokens: Int32Array.of(1, 37) }, /token 37 at position 1 .* vocabulary of 37/],
    ["a target outside the vocabulary", { targets: Int32Array.of(-2, 1) }, /target -2 at position 0/],
    ["temperature 0", { temperatures: Float32Array.of(0, 1) }, /temperature 0 at position 0 is not positive/],
    ["boundaries that end early", { cu: Int32Array.of(0, 1) }, /boundaries must rise from 0 to the 2 tokens/],
    ["targets of another length", { targets: Int32Array.of(1) }, /2 tokens, 1 targets/],
  ])("are refused with %s", async (_, change, message) => {
    const good = { ...pack([[1, 2]]), targets: Int32Array.of(2, 3) };
    const model = await makeModel(given);
    await expect(model.forward({ ...good, ...change }, false)).rejects.toThrow(message);
  });
});

// Sums of exponentials that skip what is not a number would hide it.
it("a weight that is not a number shows in every log-probability, entropy and gradient", async () => {
  const given = fixture("untied");
  const model = await makeModel(given);
  const optimizer = new AdamW(model, { beta1: 0, beta2: 0, eps: 1e-8, weightDecay: 0 });
  const broken = new Float32Array(37 * 16);
  broken[5 * 16] = Number.NaN; // one token's row of the head
  await model.writeGradient("lm_head.weight", broken);
  await optimizer.step(1, 1);
  const { logp, entropy } = await scores(model, given.rows);
  const wanted = given.expected.targets.map((target) => target >= 0);
  expect([...logp].map(Number.isNaN)).toEqual(wanted);
  expect([...entropy].map(Number.isNaN)).toEqual(wanted);
  await model.zeroGradients();
  await backwardOnce(model, given);
  expect(await model.gradientNorm()).toBeNaN();
});

describe("a model that is not trainable", () => {
  it("scores, and refuses gradients and an optimizer", async () => {
    const given = fixture("tied");
    const model = await makeModel(given, { trainable: false });
    const { logp } = await model.forward(given.rows, false);
    expect(logp.requiresGrad).toBe(false);
    await expect(model.forward(given.rows, true)).rejects.toThrow("not trainable");
    expect(() => new AdamW(model, { beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0 })).toThrow("trainable");
  });
});
