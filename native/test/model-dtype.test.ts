import { AdamW, Model, setThreads } from "molt-native";
import { beforeAll, expect, test } from "vitest";
import { readDecoder } from "../../runner/src/data/decoder.ts";

const { config, units } = readDecoder(
  {
    model_type: "llama",
    vocab_size: 31,
    hidden_size: 16,
    intermediate_size: 24,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    max_position_embeddings: 32,
  },
  "config.json",
);
const rows = {
  tokens: Int32Array.from({ length: 31 }, (_, i) => i),
  cu: Int32Array.of(0, 10, 31),
  targets: Int32Array.from({ length: 31 }, (_, i) => (i * 7) % 31),
  temperatures: new Float32Array(31).fill(1),
};

beforeAll(() => setThreads(1));

async function makeModel() {
  const model = await Model.create({ config, units, group: null, trainable: true, dtype: "bfloat16" });
  await model.initialize(1);
  return model;
}

// case B7
test("a weight of 0.02 takes 1,000 updates of 1e-5, which bf16 itself cannot hold", async () => {
  const model = await makeModel();
  const optimizer = new AdamW(model, { beta1: 0, beta2: 0, eps: 1e-12, weightDecay: 0 });
  const name = "model.norm.weight";
  // Adam without memory moves each weight by the learning rate against its gradient's sign.
  const moveBy = async (step: number, sign: number) => {
    await model.writeGradient(name, new Float32Array(16).fill(-sign));
    await optimizer.step(step, 1);
  };
  await moveBy(0.98, -1);
  expect((await model.read(name))[0]).toBeCloseTo(0.02, 6);
  for (let i = 0; i < 1000; ++i) await moveBy(1e-5, 1);
  for (const weight of await model.read(name)) expect(weight).toBeCloseTo(0.03, 4);
  model.dispose();
});

// case B7
test("at least 90% of the weights move in 100 tiny steps", async () => {
  const model = await makeModel();
  const optimizer = new AdamW(model, { beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0 });
  const names = units.flatMap((unit) => unit.parameters.map(({ name }) => name));
  const read = async () => (await Promise.all(names.map((name) => model.read(name)))).flatMap((values) => [...values]);
  const before = await read();
  for (let i = 0; i < 100; ++i) {
    const { logp } = await model.forward(rows, true);
    await model.backward(logp.sum().mul(-1 / 31));
    await optimizer.step(1e-6, 1);
    await model.zeroGradients();
  }
  const after = await read();
  const moved = after.filter((weight, i) => weight !== before[i]).length;
  expect(moved / before.length).toBeGreaterThan(0.9);
  model.dispose();
});

test("only float32 and bfloat16 are computed in", async () => {
  const options = { config, units, group: null, trainable: true, dtype: "float16" as "float32" };
  expect(() => Model.create(options)).toThrow("the compute dtype is float32 or bfloat16, not 'float16'");
});

test("the weights that leave a bf16 model are its float32 masters", async () => {
  const bf16 = await makeModel();
  const float32 = await Model.create({ config, units, group: null, trainable: true });
  await float32.initialize(1);
  expect(await bf16.checksum()).toBe(await float32.checksum());
  const logp = async (model: Model) => (await model.forward(rows, false)).logp.data();
  const [rounded, exact] = [await logp(bf16), await logp(float32)];
  const gap = Math.max(...Array.from(exact, (value, i) => Math.abs(value - rounded[i]!)));
  expect(gap).toBeGreaterThan(1e-5);
  expect(gap).toBeLessThan(0.1);
});
