/** Our side of decoding and training: the native sampler and trainer, called as the engine and the ranks call them. */
import { createInterface } from "node:readline";
import { AdamW, Model, type PackedRows, Sampler, scope, setThreads } from "molt-native";
import { readModelFolder } from "../src/data/model-folder.ts";
import type { DecodeAnswer, DecodeRequest, TrainAnswer, TrainRequest } from "./side.ts";

const [folder = "", dtype = "float32", pages = "0", checkpoint = "full"] = process.argv.slice(2);
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const { config, units } = decoder;
const precision = dtype as "float32" | "bfloat16";
const seconds = () => performance.now() / 1000;
const cpuSeconds = () => (process.cpuUsage().user + process.cpuUsage().system) / 1e6;

async function openSampler(): Promise<Sampler> {
  const sampler = await Sampler.create({ config, units, pageSize: 16, numPages: Number(pages), dtype: precision });
  await sampler.load(tensors);
  return sampler;
}

async function decode(sampler: Sampler, { prompts, tokens }: DecodeRequest): Promise<DecodeAnswer> {
  const sequences = Int32Array.from(prompts.keys());
  const step = (fed: Int32Array, each: number) =>
    sampler.step({
      sequences,
      cu: Int32Array.from({ length: sequences.length + 1 }, (_, index) => index * each),
      tokens: fed,
      temperatures: new Float32Array(sequences.length).fill(1),
      topP: new Float32Array(sequences.length).fill(1),
      topK: new Int32Array(sequences.length),
      uniforms: Float64Array.from(sequences, Math.random),
    });
  const begin = seconds();
  let last = (await step(Int32Array.from(prompts.flat()), prompts[0]!.length)).tokens;
  const [first, cpu] = [seconds(), cpuSeconds()];
  for (let position = 1; position < tokens; position++) last = (await step(last, 1)).tokens;
  const end = seconds();
  for (const sequence of sequences) sampler.free(sequence);
  return { prompt: first - begin, decode: end - first, cpu: cpuSeconds() - cpu };
}

interface Trainer {
  model: Model;
  optimizer: AdamW;
}

async function openTrainer(): Promise<Trainer> {
  const gradientCheckpoint = checkpoint as "full" | "selective" | "none";
  const model = await Model.create({
    config,
    units,
    group: null,
    trainable: true,
    dtype: precision,
    gradientCheckpoint,
  });
  await model.load(tensors);
  const optimizer = new AdamW(model, { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.01 });
  return { model, optimizer };
}

function pack(rows: number[][]): PackedRows {
  const length = rows[0]!.length;
  const tokens = Int32Array.from(rows.flat());
  return {
    tokens,
    cu: Int32Array.from({ length: rows.length + 1 }, (_, index) => index * length),
    targets: tokens.map((_, index) => ((index + 1) % length === 0 ? -1 : tokens[index + 1]!)),
    temperatures: new Float32Array(tokens.length).fill(1),
  };
}

/** Mean negative log-probability of the next token, clipped to norm 1. */
async function train({ model, optimizer }: Trainer, { rows }: TrainRequest): Promise<TrainAnswer> {
  const [begin, cpu] = [seconds(), cpuSeconds()];
  const { logp, entropy } = await model.forward(pack(rows), true);
  const loss = scope(() => logp.sum().mul(-1 / (rows.length * (rows[0]!.length - 1))));
  await model.backward(loss);
  for (const tensor of [logp, entropy, loss]) tensor.dispose();
  const norm = await model.gradientNorm();
  await optimizer.step(1e-5, Math.min(1, 1 / norm));
  await model.zeroGradients();
  return { seconds: seconds() - begin, cpu: cpuSeconds() - cpu, peak: process.resourceUsage().maxRSS * 1024 };
}

let sampler: Promise<Sampler> | undefined;
let trainer: Promise<Trainer> | undefined;
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line) as DecodeRequest | TrainRequest;
  await setThreads(request.threads);
  sampler ??= request.op === "decode" ? openSampler() : undefined;
  trainer ??= request.op === "train" ? openTrainer() : undefined;
  const answer =
    request.op === "decode" ? await decode((await sampler)!, request) : await train((await trainer)!, request);
  console.log(JSON.stringify(answer));
}
process.exit(0);
