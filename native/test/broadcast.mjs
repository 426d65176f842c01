// A trainer's part of a weight transfer, for sampler.process.test.ts: rank 0 of a group of two. Reads its options from
// standard input and prints the checksum of what it sent.
import { text } from "node:stream/consumers";
import { Model, ProcessGroup } from "molt-native";

const { config, units, tensors, group } = JSON.parse(await text(process.stdin));
const model = await Model.create({ config, units, group: null, trainable: false });
await model.load(tensors);
const transfer = await ProcessGroup.create(group);
await model.broadcast(transfer);
console.log(await model.checksum());
transfer.close();
