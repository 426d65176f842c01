import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ProcessGroup, Sampler } from "molt-native";
import { afterAll, afterEach, expect, test } from "vitest";
import { freePort } from "../launchers/free-port.ts";
import { sftLoss } from "./fixtures/loss.ts";
import { adaptedModel, fixtureRows, tinyInit, tinyModel } from "./fixtures/tiny.ts";
import { RankGroup } from "./handle.ts";
import { sftBatch } from "./sft-batch.ts";

const groups: RankGroup[] = [];
const directory = mkdtempSync(join(tmpdir(), "molt-lora-"));
afterEach(async () => {
  await Promise.all(groups.splice(0).map((group) => group.stop()));
});
afterAll(() => rmSync(directory, { recursive: true }));

const policy = adaptedModel();
const settings = { maxTokensPerDevice: 24, schedule: () => 0.05 };

async function start(count: number): Promise<RankGroup> {
  const init = tinyInit({ policy, loss: sftLoss });
  const group = await RankGroup.start({ count, init, deadlines: { start: 60, request: 60 } });
  groups.push(group);
  return group;
}

async function exported(group: RankGroup, method: "exportWeights" | "exportAdapters", file: string) {
  await group.all(method, { directory });
  const bytes = readFileSync(join(directory, file));
  return new Float32Array(Uint8Array.from(bytes.subarray(8 + Number(bytes.readBigUInt64LE()))).buffer);
}

// case C4, invariant 3
test("two ranks train the adapters that one does, save and restore them, and send an engine the sum", async () => {
  const [one, two] = await Promise.all([start(1), start(2)]);
  expect((await two!.all("checksum", {}))[1]).toEqual((await one!.all("checksum", {}))[0]);
  const losses = [];
  for (let step = 0; step < 5; step++) {
    const [single, both] = await Promise.all(
      [one!, two!].map((group) => sftBatch(group, fixtureRows(), settings, step)),
    );
    expect(both!.metrics.grad_norm! / single!.metrics.grad_norm!).toBeCloseTo(1, 4);
    losses.push(both!.metrics.loss!);
  }
  expect(losses[4]).toBeLessThan(losses[0]!);
  for (const [method, file] of [
    ["exportAdapters", "adapter_model.safetensors"],
    ["exportWeights", "model.safetensors"],
  ] as const) {
    const [wanted, found] = [await exported(one!, method, file), await exported(two!, method, file)];
    expect(found.length).toBe(wanted.length);
    expect(Math.max(...found.map((value, i) => Math.abs(value - wanted[i]!))), method).toBeLessThanOrEqual(1e-4);
  }

  const before = await two!.all("checksum", {});
  await two!.all("saveCheckpoint", { directory });
  await two!.all("checkpointWritten", {});
  await sftBatch(two!, fixtureRows(), settings, 5);
  await two!.all("loadCheckpoint", { directory });
  expect(await two!.all("checksum", {})).toEqual(before);

  const { config, units } = tinyModel("policy");
  const sampler = await Sampler.create({ config, units, pageSize: 4, numPages: 8 });
  const transfer = { host: "127.0.0.1", port: await freePort(), worldSize: 2, prefix: "sync", timeoutMs: 20_000 };
  const [, joined] = await Promise.all([
    two!.all("connectEngines", transfer),
    ProcessGroup.create({ ...transfer, rank: 1, serveStore: false }),
  ]);
  const names = units.flatMap(({ parameters }) => parameters.map(({ name }) => name));
  const [sent] = await Promise.all([two!.all("broadcastWeights", {}), sampler.receive(joined, names)]);
  expect({ checksum: await sampler.checksum() }).toEqual(sent[0]);
  expect(sent[0]).toEqual(before[0]);
  joined.close();
  sampler.dispose();
});
