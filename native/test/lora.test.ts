import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { AdamW, Model, type ModelOptions, type PackedRows, Tensor } from "molt-native";
import { afterAll, expect, test } from "vitest";
import { adapterUnits, adaptUnits } from "../../runner/src/data/adapters.ts";
import { exportHeader, readModelFolder } from "../../runner/src/data/model-folder.ts";
import { readSafetensorsHeader } from "../../runner/src/data/safetensors.ts";
import { largestDifference, readTensors } from "./tensors.ts";

// What float64 and peft say of an adapter on model/untied: see fixtures/make_lora.py.
const models = fileURLToPath(new URL("fixtures/model", import.meta.url));
const readJson = (...path: string[]) => JSON.parse(readFileSync(join(models, ...path), "utf8"));
const { logp, entropy, peftLogp } = readJson("lora", "expected.json");
const { tokens, cu, targets, temperatures, a, b, logp: baseLogp, adamw } = readJson("untied", "expected.json");
const { r, lora_alpha, target_modules } = readJson("lora", "adapter_config.json");
const { decoder, tensors } = readModelFolder(join(models, "untied"), { weights: "required" });
const lora = { rank: r, alpha: lora_alpha, target_modules };
const units = adaptUnits(decoder.units, { actor: { lora } } as Parameters<typeof adaptUnits>[1]);
const names = adapterUnits(units).flatMap(({ parameters }) => parameters.map(({ name }) => name));
const rows: PackedRows = {
  tokens: Int32Array.from(tokens),
  cu: Int32Array.from(cu),
  targets: Int32Array.from(targets),
  temperatures: Float32Array.from(temperatures),
};
const scratch = mkdtempSync(join(tmpdir(), "molt-lora-"));
afterAll(() => rmSync(scratch, { recursive: true }));

const given = (file: string) => readTensors(join(models, "lora", file));

async function makeModel(options: Partial<ModelOptions> = {}): Promise<Model> {
  const model = await Model.create({ config: decoder.config, units, group: null, trainable: true, ...options });
  await model.load(tensors);
  return model;
}

/** With the fixture's adapter, through a checkpoint whose moments are zero. */
async function adapted(options: Partial<ModelOptions> = {}) {
  const model = await makeModel(options);
  const { rates: _, scale: __, ...settings } = adamw;
  const optimizer = new AdamW(model, settings);
  const factors = given("adapter_model.safetensors");
  const shard = new Float32Array(3 * model.shardSize);
  shard.set(names.flatMap((name) => [...factors.get(name)!]));
  writeFileSync(join(scratch, "shard"), Buffer.from(shard.buffer));
  await optimizer.loadShard(join(scratch, "shard"), 0);
  return { model, optimizer };
}

async function scores(model: Model): Promise<{ logp: Float32Array; entropy: Float32Array }> {
  const scored = await model.forward(rows, false);
  return { logp: await scored.logp.data(), entropy: await scored.entropy.data() };
}

async function backward(model: Model): Promise<void> {
  const scored = await model.forward(rows, true);
  const [weightA, weightB] = [a, b].map((values) => Tensor.from(Float32Array.from(values)));
  await model.backward(weightA!.mul(scored.logp).add(weightB!.mul(scored.entropy)).sum());
}

test("log-probabilities and entropies are float64's, and those of peft on the same files", async () => {
  const { model } = await adapted();
  const own = await scores(model);
  expect(largestDifference(own.logp, logp)).toBeLessThan(1e-5);
  expect(largestDifference(own.entropy, entropy)).toBeLessThan(1e-5);
  expect(largestDifference(own.logp, peftLogp)).toBeLessThan(2e-5);
  expect(largestDifference((await scores(await model.base())).logp, baseLogp)).toBeLessThan(1e-5);
});

test.each(["full", "none"] as const)(
  "checkpoint %s: the factors have float64's gradients, and no other",
  async (how) => {
    const { model } = await adapted({ gradientCheckpoint: how });
    await backward(model);
    let squares = 0;
    for (const [name, want] of given("gradients.safetensors")) {
      const scale = Math.max(...want.map(Math.abs));
      expect(scale, name).toBeGreaterThan(1e-2);
      expect(largestDifference(await model.readGradient(name), want) / scale, name).toBeLessThan(2e-5);
      squares += want.reduce((sum, value) => sum + value ** 2, 0);
    }
    expect((await model.gradientNorm()) / Math.sqrt(squares)).toBeCloseTo(1, 5);
    const frozen = model.readGradient("model.layers.0.self_attn.q_proj.weight");
    await expect(frozen).rejects.toThrow("the model trains no parameter 'model.layers.0.self_attn.q_proj.weight'");
    await model.writeGradient(
      names[0]!,
      new Float32Array(given("gradients.safetensors").get(names[0]!)!).fill(Number.NaN),
    );
    expect(await model.nonFiniteGradients()).toEqual([names[0]]);
  },
);

test("steps are torch.optim.AdamW's; the base keeps every bit; what is read, saved and hashed is the sum", async () => {
  const { model, optimizer } = await adapted();
  for (const rate of adamw.rates) {
    await backward(model);
    await optimizer.step(rate, adamw.scale);
    await model.zeroGradients();
  }
  const trained = given("trained.safetensors");
  for (const [name, want] of trained) {
    expect(largestDifference(await model.read(name), want), name).toBeLessThan(1e-5);
  }
  const plain = await makeModel({ units: decoder.units });
  expect(await (await model.base()).checksum()).toBe(await plain.checksum());

  const file = join(scratch, "model.safetensors");
  await model.save(file, exportHeader(units));
  const [saved, base] = [readTensors(file), readTensors(join(models, "untied", "model.safetensors"))];
  for (const { name, shape } of decoder.units.flatMap(({ parameters }) => parameters)) {
    const [A, B] = ["lora_A", "lora_B"].map((kind) =>
      trained.get(`base_model.model.${name.replace(/weight$/, `${kind}.weight`)}`),
    );
    const [columns, k] = [shape[1] ?? 1, lora.rank];
    const sum = Array.from(base.get(name)!, (weight, at) => {
      const [row, column] = [Math.floor(at / columns), at % columns];
      let product = 0;
      for (let i = 0; A && B && i < k; i++) product += B[row * k + i]! * A[i * columns + column]!;
      return weight + (lora.alpha / k) * product;
    });
    expect(largestDifference(saved.get(name)!, sum), name).toBeLessThan(1e-4);
    expect(await model.read(name), name).toEqual(saved.get(name));
  }
  const merged = readSafetensorsHeader(file).entries.map(({ name, shape, offset }) => {
    return { name, shape, offset, file, dtype: "F32" as const };
  });
  for (const dtype of ["float32", "bfloat16"] as const) {
    const { model: ours } = await adapted({ dtype });
    await ours.save(file, exportHeader(units));
    const engine = await Model.create({
      config: decoder.config,
      units: decoder.units,
      group: null,
      trainable: false,
      dtype,
    });
    await engine.load(merged);
    expect(await engine.checksum()).toBe(await ours.checksum());
    // The very same weights, in bf16 too: rounded after they are summed.
    expect(await scores(engine)).toEqual(await scores(ours));
  }
});

test("a new adapter changes no bit of the model, is uniform where torch's layers are, follows the seed", async () => {
  const [model, plain] = [await makeModel(), await makeModel({ units: decoder.units })];
  await model.initialize(3, "adapters");
  expect(await scores(model)).toEqual(await scores(plain));
  expect(await model.checksum()).toBe(await plain.checksum());
  const read = () => Promise.all(names.map((name) => model.read(name)));
  const first = await read();
  for (const [i, name] of names.entries()) {
    const values = first[i]!;
    // 1 / sqrt(inputs), as kaiming_uniform_(a=sqrt(5)) bounds it; B is zero.
    const bound = name.endsWith("lora_A.weight") ? 1 / Math.sqrt(values.length / lora.rank) : 0;
    const most = Math.max(...values.map(Math.abs));
    expect(most, name).toBeLessThanOrEqual(bound);
    expect(most, name).toBeGreaterThanOrEqual(0.7 * bound);
  }
  expect(model.shardSize).toBe(first.reduce((sum, values) => sum + values.length, 0));
  await model.initialize(4, "adapters");
  expect(await read()).not.toEqual(first);
  await model.initialize(3, "adapters");
  expect(await read()).toEqual(first);
});
