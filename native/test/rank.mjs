// One rank of a sharded model, for *.process.test.ts. Reads its job from standard input, prints what it saw.
import { text } from "node:stream/consumers";
import { AdamW, Model, ProcessGroup, Tensor } from "molt-native";

const job = JSON.parse(await text(process.stdin));
const { config, units, tensors, options, mesh, microbatches, steps, save } = job;
const { rank, worldSize } = options;

async function groupOf(prefix, number, rank, worldSize) {
  if (worldSize === 1) return null;
  return ProcessGroup.create({ ...options, prefix: `${prefix}${number}`, rank, worldSize, serveStore: false });
}

const { cp = 1, ep = 1 } = mesh;
const group = await ProcessGroup.create(options);
const groups = {
  contextGroup: await groupOf("context", Math.floor(rank / cp), rank % cp, cp),
  expertGroup: await groupOf("expert", Math.floor(rank / ep), rank % ep, ep),
  expertDataGroup: await groupOf("expert-data", rank % ep, Math.floor(rank / ep), worldSize / ep),
};
const model = await Model.create({ config, units, group, trainable: true, ...groups, ...job.model });
const names = units.flatMap((unit) => [...unit.parameters, ...(unit.experts ?? [])].map(({ name }) => name));
const readAll = async (read) =>
  Object.fromEntries(await Promise.all(names.map(async (name) => [name, [...(await read(name))]])));
const seen = { shardSize: model.shardSize };

await model.initialize(3);
seen.initialized = await model.checksum();
await model.save(save, Buffer.from("head"));
// What only rank 0 cannot do: the others gather on, and all are ready for the next thing.
const nowhere = model.save(`${save}-folder-that-is-not-there/x`, Buffer.from("head"));
seen.unwritten = await nowhere.then(() => null, String);

if (tensors) await model.load(tensors);
seen.loaded = await model.checksum();
const weighted = (weights, values) => Tensor.from(Float32Array.from(weights)).mul(values);

/** Log-probabilities of the microbatches, end to end; their gradients are in the model. */
async function accumulate() {
  const all = [];
  for (const { rows, a, b } of microbatches) {
    const packed = {
      tokens: Int32Array.from(rows.tokens),
      cu: Int32Array.from(rows.cu),
      targets: Int32Array.from(rows.targets),
      temperatures: Float32Array.from(rows.temperatures),
      ...(rows.balance && { balance: Float32Array.from(rows.balance) }),
    };
    const { logp, entropy, balance } = await model.forward(packed, true);
    seen.balance = balance;
    all.push(...(await logp.data()));
    const loss = weighted(a, logp).add(weighted(b, entropy)).sum();
    await model.backward(loss);
    for (const tensor of [logp, entropy, loss]) tensor.dispose();
  }
  return all;
}

seen.logp = await accumulate();
seen.norm = await model.gradientNorm();
seen.gradients = await readAll((name) => model.readGradient(name));

const optimizer = new AdamW(model, { beta1: 0.9, beta2: 0.95, eps: 1e-2, weightDecay: 0.1 });
await optimizer.step(1e-2, 0.5);
for (let step = 1; step < steps; step++) {
  await model.zeroGradients();
  seen.logp = await accumulate();
  seen.norm = await model.gradientNorm();
  await optimizer.step(1e-2, 0.5);
}
seen.stepped = await readAll((name) => model.read(name));
const shard = `${save}.shard${rank}`;
seen.trained = await model.checksum();
await optimizer.saveShard(shard, Buffer.from("12345678"));
await model.initialize(4);
await optimizer.loadShard(shard, 8);
seen.restored = await model.checksum();

// Only the last rank's part of one parameter is broken; every rank must name it.
await model.zeroGradients();
if (rank === worldSize - 1)
  await model.writeGradient("lm_head.weight", new Float32Array(config.vocabSize * config.hiddenSize).fill(Number.NaN));
seen.broken = await model.nonFiniteGradients();

await group.barrier();
for (const each of [...Object.values(groups), group]) each?.close();
console.log(JSON.stringify(seen));
