// A trainer's part of a weight transfer, for sampler.process.test.ts: rank 0 of a group of two. Reads its options from
// standard input and prints the checksum of what it sent. Weights are the tensors', or random where there is a seed.
import { text } from "node:stream/consumers";
import { Model, ProcessGroup } from "molt-native";

const { config, units, tensors, seed, group } = JSON.parse(await text(process.stdin));
const model = await Model.create({ config, units, group: null, trainable: false });
await (seed === undefined ? model.load(tensors) : model.initialize(seed));
const transfer = await ProcessGroup.create(group);
console.log(await model.broadcast(transfer));
transfer.close();
