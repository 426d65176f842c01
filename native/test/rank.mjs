// One rank of a sharded model, for model.process.test.ts. Reads its job from standard input, prints what it saw.
import { text } from "node:stream/consumers";
import { AdamW, Model, ProcessGroup, Tensor } from "molt-native";

const {
  config,
  units,
  tensors,
  options,
  model: modelOptions,
  rows,
  a,
  b,
  save,
} = JSON.parse(await text(process.stdin));
const group = await ProcessGroup.create(options);
const model = await Model.create({ config, units, group, trainable: true, ...modelOptions });
const names = units.flatMap((unit) => unit.parameters.map(({ name }) => name));
const readAll = async (read) =>
  Object.fromEntries(await Promise.all(names.map(async (name) => [name, [...(await read(name))]])));
const seen = { shardSize: model.shardSize };

await model.initialize(3);
seen.initialized = await model.checksum();
await model.save(save, Buffer.from("head"));

await model.load(tensors);
seen.loaded = await model.checksum();
const { logp, entropy } = await model.forward(
  {
    tokens: Int32Array.from(rows.tokens),
    cu: Int32Array.from(rows.cu),
    targets: Int32Array.from(rows.targets),
    temperatures: Float32Array.from(rows.temperatures),
  },
  true,
);
seen.logp = [...(await logp.data())];
const weighted = (weights, values) => Tensor.from(Float32Array.from(weights)).mul(values);
await model.backward(weighted(a, logp).add(weighted(b, entropy)).sum());
seen.gradients = await readAll((name) => model.readGradient(name));
seen.norm = await model.gradientNorm();

const optimizer = new AdamW(model, { beta1: 0.9, beta2: 0.95, eps: 1e-2, weightDecay: 0.1 });
await optimizer.step(1e-2, 0.5);
seen.stepped = await readAll((name) => model.read(name));
const shard = `${save}.shard${options.rank}`;
seen.trained = await model.checksum();
await optimizer.saveShard(shard, Buffer.from("12345678"));
await model.initialize(4);
await optimizer.loadShard(shard, 8);
seen.restored = await model.checksum();

// Only the last rank's part of one parameter is broken; every rank must name it.
await model.zeroGradients();
if (options.rank === options.worldSize - 1)
  await model.writeGradient("lm_head.weight", new Float32Array(37 * 16).fill(Number.NaN));
seen.broken = await model.nonFiniteGradients();

await group.barrier();
group.close();
console.log(JSON.stringify(seen));
