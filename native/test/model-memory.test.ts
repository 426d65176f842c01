import { fileURLToPath } from "node:url";
import { Model, memory } from "molt-native";
import { expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";

// In a file, and so a process, of its own: what other tests leave to the collector would count in the measurement.

const folder = fileURLToPath(new URL("fixtures/model/untied", import.meta.url));
const { decoder } = readModelFolder(folder, { weights: "none" });
const length = 256;
const tokens = Int32Array.from({ length }, (_, t) => t % 37);
const rows = {
  tokens,
  cu: Int32Array.of(0, length),
  targets: tokens.map((_, t) => tokens[t + 1] ?? -1),
  temperatures: new Float32Array(length).fill(1),
};

/** Bytes held between forward and backward, and the most held at any time, over those of the model itself. */
async function measure(vocabSize: number): Promise<{ held: number; peak: number }> {
  const units = structuredClone(decoder.units);
  for (const parameter of [units[0]!.parameters[0]!, units.at(-1)!.parameters[1]!]) parameter.shape[0] = vocabSize;
  const config = { ...decoder.config, vocabSize };
  const model = await Model.create({ config, units, group: null, trainable: true, headChunk: 16 });
  await model.initialize(1);
  const before = memory(true).current;
  const { logp, entropy } = await model.forward(rows, true);
  const { current } = memory();
  const loss = logp.sum();
  await model.backward(loss);
  const { peak } = memory();
  for (const tensor of [logp, entropy, loss]) tensor.dispose();
  model.dispose();
  return { held: current - before, peak: peak - before };
}

// case I2
it("holds nothing between forward and backward that grows with rows x vocabulary", async () => {
  const small = await measure(500);
  const large = await measure(8000);
  expect(large.held - small.held).toBeLessThan(64 * 1024);
  // Chunks of 16 rows, a gradient of the matrix and of the embedding at once; all rows would be 8 MB a tensor.
  expect(large.peak).toBeLessThan(length * 8000 * 4);
});
