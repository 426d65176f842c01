import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { AdamW, Model, Tensor, type TensorLocation } from "molt-native";
import { afterAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { buildSafetensorsHeader } from "../../runner/src/data/safetensors.ts";

const folder = fileURLToPath(new URL("fixtures/model/untied", import.meta.url));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const { config, units } = decoder;
const parameters = units.flatMap((unit) => unit.parameters);
const names = parameters.map(({ name }) => name);
const adamw = { beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0.1 };
const scratch = mkdtempSync(join(tmpdir(), "molt-model-"));
afterAll(() => rmSync(scratch, { recursive: true }));

const create = () => Model.create({ config, units, group: null, trainable: true });

async function loaded(locations: TensorLocation[] = tensors): Promise<Model> {
  const model = await create();
  await model.load(locations);
  return model;
}

async function trainOnce(model: Model, optimizer: AdamW): Promise<void> {
  const tokens = Int32Array.of(1, 2, 3, 4, 5);
  const targets = Int32Array.of(2, 3, -1, 5, -1);
  const temperatures = new Float32Array(5).fill(1);
  const { logp } = await model.forward({ tokens, cu: Int32Array.of(0, 3, 5), targets, temperatures }, true);
  await model.backward(logp.sum().neg());
  await optimizer.step(1e-2, 1);
  await model.zeroGradients();
}

/** The tensor's own bytes, read without the native part. */
function bytesOf({ file, offset, shape }: TensorLocation): Buffer {
  const size = shape.reduce((product, length) => product * length, 4);
  return readFileSync(file).subarray(offset, offset + size);
}

describe("weights", () => {
  it("are read bit for bit from float32", async () => {
    const model = await loaded();
    for (const tensor of tensors) {
      expect(Buffer.from((await model.read(tensor.name)).buffer).equals(bytesOf(tensor)), tensor.name).toBe(true);
    }
  });

  it.each([
    // Sign, exponent and fraction of 1.5, -2, 0.15625 (= 1.25 / 8) and 0, by hand.
    ["BF16", [0x3fc0, 0xc000, 0x3e20, 0]] as const,
    ["F16", [0x3e00, 0xc000, 0x3100, 0]] as const,
  ])("are read from %s", async (dtype, bits) => {
    const file = join(scratch, dtype);
    const norm = tensors.findIndex(({ name }) => name === "model.norm.weight");
    const data = Buffer.alloc(3 + 2 * 16);
    // At an odd offset, as files of other writers may have.
    for (let i = 0; i < 16; i++) data.writeUInt16LE(bits[i % 4]!, 3 + 2 * i);
    writeFileSync(file, data);
    const model = await loaded(tensors.with(norm, { ...tensors[norm]!, file, offset: 3, dtype }));
    expect([...(await model.read("model.norm.weight"))].slice(0, 4)).toEqual([1.5, -2, 0.15625, 0]);
  });

  it("survive saving and loading bit for bit", async () => {
    const model = await create();
    await model.initialize(5);
    await model.save(join(scratch, "model.safetensors"), buildSafetensorsHeader(parameters, { format: "pt" }));
    writeFileSync(join(scratch, "config.json"), readFileSync(join(folder, "config.json")));
    const again = await loaded(readModelFolder(scratch, { weights: "required" }).tensors);
    expect(await again.checksum()).toBe(await model.checksum());
    for (const name of names) expect(await again.read(name)).toEqual(await model.read(name));
  });

  it("have a checksum that one flipped bit and two swapped values change", async () => {
    const model = await loaded();
    const data = readFileSync(tensors[0]!.file);
    const file = join(scratch, "changed");
    const moved = tensors.map((tensor) => ({ ...tensor, file }));
    const flipped = Buffer.from(data);
    flipped[tensors.at(-1)!.offset + 3]! ^= 1;
    writeFileSync(file, flipped);
    expect(await (await loaded(moved)).checksum()).not.toBe(await model.checksum());
    const { offset } = tensors[0]!;
    const swapped = Buffer.from(data);
    data.copy(swapped, offset, offset + 4, offset + 8);
    data.copy(swapped, offset + 4, offset, offset + 4);
    writeFileSync(file, swapped);
    expect(await (await loaded(moved)).checksum()).not.toBe(await model.checksum());
  });

  it("are refused where one is missing, of another shape, or cut off", async () => {
    const name = "model.layers.1.mlp.up_proj.weight";
    const index = tensors.findIndex((tensor) => tensor.name === name);
    const model = await create();
    await expect(model.load(tensors.toSpliced(index, 1))).rejects.toThrow(
      `tensor '${name}' of shape [24, 16] is not among the 24 tensors`,
    );
    const transposed = { ...tensors[index]!, shape: [16, 24] };
    await expect(model.load(tensors.with(index, transposed))).rejects.toThrow(
      `tensor '${name}' has shape [16, 24], but the model's config wants [24, 16]`,
    );
    const file = join(scratch, "short");
    writeFileSync(file, readFileSync(tensors[0]!.file));
    truncateSync(file, 20_000);
    const moved = tensors.map((tensor) => ({ ...tensor, file }));
    await expect(model.load(moved)).rejects.toThrow(/short: cut off: tensor .* the file at 20000/);
    await expect(model.load([{ ...tensors[0]!, file: join(scratch, "none") }, ...tensors.slice(1)])).rejects.toThrow(
      "No such file or directory",
    );
  });
});

describe("initialize", () => {
  it("draws what the description says, by seed", async () => {
    const model = await create();
    await model.initialize(7);
    const first = await model.checksum();
    await model.initialize(8);
    expect(await model.checksum()).not.toBe(first);
    await model.initialize(7);
    expect(await model.checksum()).toBe(first);
    for (const { name, init } of parameters) {
      const values = await model.read(name);
      const deviation = Math.sqrt(values.reduce((sum, value) => sum + value ** 2, 0) / values.length);
      if (init.kind !== "normal") expect(new Set(values), name).toEqual(new Set([1]));
      // 6 standard errors of a sample deviation.
      else expect(Math.abs(deviation / init.std - 1), name).toBeLessThan(6 / Math.sqrt(2 * values.length));
    }
    const [q, k] = ["q", "k"].map((role) => parameters.find((parameter) => parameter.role === role)!.name);
    expect((await model.read(q!)).slice(0, 8)).not.toEqual((await model.read(k!)).slice(0, 8));
  });
});

describe("an optimizer's shard", () => {
  // case F4
  it("goes on bit for bit after saving and loading", async () => {
    const model = await loaded();
    const optimizer = new AdamW(model, adamw);
    const path = join(scratch, "shard");
    await trainOnce(model, optimizer);
    await trainOnce(model, optimizer);
    await optimizer.saveShard(path, Buffer.from("header"));
    expect(readFileSync(path).length).toBe(6 + 3 * 4 * model.shardSize);
    expect(readFileSync(path).subarray(0, 6).toString()).toBe("header");
    const other = await create();
    const resumed = new AdamW(other, adamw);
    await resumed.loadShard(path, 6);
    resumed.stepCount = optimizer.stepCount;
    expect(await other.checksum()).toBe(await model.checksum());
    await trainOnce(model, optimizer);
    await trainOnce(other, resumed);
    expect(await other.checksum()).toBe(await model.checksum());
    await expect(resumed.loadShard(path, 7)).rejects.toThrow("cut off");
  });

  // case C8
  it("keeps weights and moments bit for bit where a broken gradient is noticed and no step taken", async () => {
    const model = await loaded();
    const optimizer = new AdamW(model, adamw);
    await trainOnce(model, optimizer);
    await optimizer.saveShard(join(scratch, "before"), new Uint8Array());
    await model.writeGradient("model.norm.weight", new Float32Array(16).fill(1));
    expect(await model.nonFiniteGradients()).toEqual([]);
    const bad = [Number.NaN, Number.POSITIVE_INFINITY];
    const broken = ["model.layers.0.self_attn.q_norm.weight", "model.norm.weight"];
    for (const [i, name] of broken.entries()) {
      const values = new Float32Array(parameters.find((parameter) => parameter.name === name)!.shape[0]!);
      values[values.length - 1] = bad[i]!;
      await model.writeGradient(name, values);
      expect(await model.readGradient(name)).toEqual(values);
    }
    expect(await model.nonFiniteGradients()).toEqual(broken);
    await model.zeroGradients();
    expect(await model.nonFiniteGradients()).toEqual([]);
    await optimizer.saveShard(join(scratch, "after"), new Uint8Array());
    expect(readFileSync(join(scratch, "after")).equals(readFileSync(join(scratch, "before")))).toBe(true);
  });

  // case B7
  it("moves float32 masters in tiny steps", async () => {
    const model = await loaded();
    const optimizer = new AdamW(model, { ...adamw, weightDecay: 0 });
    const name = "model.layers.0.mlp.gate_proj.weight";
    const before = await model.read(name);
    for (let step = 0; step < 100; step++) {
      await model.writeGradient(name, new Float32Array(before.length).fill(1));
      await optimizer.step(1e-7, 1);
    }
    const after = await model.read(name);
    expect(before.filter((value, i) => value !== after[i]).length / before.length).toBeGreaterThan(0.9);
  });
});

it("refuses calls after dispose, unknown names and losses without a graph", async () => {
  const model = await loaded();
  await expect(model.read("nobody")).rejects.toThrow("the model has no parameter 'nobody'");
  await expect(model.writeGradient("model.norm.weight", new Float32Array(3))).rejects.toThrow("16 values, not 3");
  await expect(model.backward(Tensor.from(Float32Array.of(1)).sum())).rejects.toThrow("no graph");
  model.dispose();
  expect(() => model.checksum()).toThrow("disposed");
  expect(() => model.dispose()).not.toThrow();
});
