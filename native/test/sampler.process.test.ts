import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { Model, ProcessGroup, type ProcessGroupOptions, Sampler } from "molt-native";
import { afterEach, describe, expect, it } from "vitest";
import { readDecoder } from "../../runner/src/data/decoder.ts";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { freePort } from "../../runner/src/launchers/free-port.ts";

const folder = fileURLToPath(new URL("fixtures/sampler", import.meta.url));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const { config, units } = decoder;
const names = units.flatMap(({ parameters }) => parameters.map(({ name }) => name));
const { requests } = JSON.parse(readFileSync(`${folder}/expected.json`, "utf8"));

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

async function options(worldSize: number): Promise<ProcessGroupOptions> {
  const port = await freePort();
  return { host: "127.0.0.1", port, rank: 0, worldSize, prefix: "transfer", serveStore: true, timeoutMs: 20_000 };
}

/** Starts `broadcast.mjs` as rank 0 with these weights; resolves with what it printed. */
function broadcast(group: ProcessGroupOptions, weights: object = { config, units, tensors }): Promise<string> {
  const script = fileURLToPath(new URL("broadcast.mjs", import.meta.url));
  const child = spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] });
  closing.push(() => child.kill("SIGKILL"));
  child.stdin.end(JSON.stringify({ ...weights, group }));
  return text(child.stdout);
}

function greedy(sampler: Sampler, tokens: number[]) {
  const one = { temperatures: Float32Array.of(0), topP: Float32Array.of(1), topK: Int32Array.of(0) };
  const cu = Int32Array.of(0, tokens.length);
  const sequences = Int32Array.of(0);
  return sampler.step({ ...one, sequences, cu, tokens: Int32Array.from(tokens), uniforms: Float64Array.of(0) });
}

describe("receive", () => {
  it.each(["float32", "bfloat16"] as const)(
    "puts a trainer's weights in place, with its checksum: %s",
    async (dtype) => {
      const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 8, dtype });
      closing.push(() => sampler.dispose());
      const group = await options(2);
      const sent = broadcast(group);
      const transfer = await ProcessGroup.create({ ...group, rank: 1, serveStore: false });
      closing.push(() => transfer.close());
      await sampler.receive(transfer, names);
      expect(await sampler.checksum()).toBe((await sent).trim());
      const { append, token } = requests[1].steps[0];
      expect([...(await greedy(sampler, append)).tokens]).toEqual([token]);
    },
  );

  it("puts weights of several buckets in place", async () => {
    // Two matrices of 18 MB, each more than a bucket; norms and projections between them.
    const small = JSON.parse(readFileSync(`${folder}/config.json`, "utf8"));
    const large = readDecoder({ ...small, vocab_size: 140_000 }, "config.json");
    const sampler = await Sampler.create({ ...large, pageSize: 4, numPages: 8 });
    closing.push(() => sampler.dispose());
    const group = await options(2);
    const sent = broadcast(group, { ...large, seed: 3 });
    const transfer = await ProcessGroup.create({ ...group, rank: 1, serveStore: false });
    closing.push(() => transfer.close());
    await sampler.receive(
      transfer,
      large.units.flatMap(({ parameters }) => parameters.map(({ name }) => name)),
    );
    const model = await Model.create({ ...large, group: null, trainable: false });
    closing.push(() => model.dispose());
    await model.initialize(3);
    expect([(await sent).trim(), await sampler.checksum()]).toEqual(Array(2).fill(await model.checksum()));
  });

  it("refuses names that are not the model's, and leaves the weights as they were", async () => {
    const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 8 });
    closing.push(() => sampler.dispose());
    await sampler.load(tensors);
    const before = await sampler.checksum();
    const transfer = await ProcessGroup.create(await options(1));
    closing.push(() => transfer.close());
    await expect(sampler.receive(transfer, ["model.norm.weight", "nobody.weight"])).rejects.toThrow(
      "tensor 'nobody.weight' is not of this model, or named twice: nothing was received",
    );
    await expect(sampler.receive(transfer, [...names, names[0]!])).rejects.toThrow(`tensor '${names[0]}' is not`);
    await expect(sampler.receive(transfer, names.slice(1))).rejects.toThrow(
      "1 of the model's tensors are not named, such as 'model.embed_tokens.weight': nothing was received",
    );
    expect(await sampler.checksum()).toBe(before);
  });

  it("leaves no half-received weights in use when the trainer dies", async () => {
    const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 8 });
    closing.push(() => sampler.dispose());
    await sampler.load(tensors);
    const group = await options(2);
    // The other rank joins and leaves without a word.
    const script = `import { ProcessGroup } from "molt-native";
      (await ProcessGroup.create(${JSON.stringify(group)})).close();`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
      stdio: "inherit",
      cwd: fileURLToPath(new URL(".", import.meta.url)),
    });
    closing.push(() => child.kill("SIGKILL"));
    const transfer = await ProcessGroup.create({ ...group, rank: 1, serveStore: false, timeoutMs: 20_000 });
    closing.push(() => transfer.close());
    await expect(sampler.receive(transfer, names)).rejects.toThrow();
    await expect(greedy(sampler, [1, 2])).rejects.toThrow("the sampler has no complete weights");
  });
});
