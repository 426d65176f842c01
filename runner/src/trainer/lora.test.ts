import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { adapterUnits } from "../data/adapters.ts";
import { readSafetensorsHeader } from "../data/safetensors.ts";
import { adaptedModel, fixture, fixtureRows, tinyInit, tinyModel } from "./fixtures/tiny.ts";
import type { InitParams } from "./protocol.ts";
import { RankTrainer } from "./rank-trainer.ts";

const trainers: RankTrainer[] = [];
let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "molt-lora-"));
});
afterEach(() => {
  rmSync(directory, { recursive: true });
  for (const trainer of trainers.splice(0)) trainer.close();
});

const policy = adaptedModel();
const ids = fixtureRows().map((row) => row.id);
const update = {
  microbatches: [ids],
  numTokens: fixture.numTokens,
  learningRate: 0.05,
  criticLearningRate: null,
  klCoef: 0,
};
const loss = { ...fixture.spec, kl: { coef: 0, estimator: "k3" as const, inReward: false } };

async function start(changed: Partial<InitParams> = {}): Promise<RankTrainer> {
  const trainer = new RankTrainer(0);
  trainers.push(trainer);
  const store = { host: "127.0.0.1", port: 0, timeoutMs: 1000 };
  await trainer.init({ ...tinyInit({ policy, loss, ...changed }), worldSize: 1, store });
  await trainer.putRows({ rows: fixtureRows() });
  return trainer;
}

async function snapshot(trainer: RankTrainer): Promise<Buffer> {
  const { file } = await trainer.saveCheckpoint({ directory });
  await trainer.checkpointWritten();
  return readFileSync(file);
}

// Invariant 2.
test("the reference is the base: on a new adapter bit for bit the policy; it stays as the policy moves", async () => {
  const trainer = await start({ ref: "base" });
  const [old, ref] = [await trainer.score({ microbatches: [ids], as: "old" }), await score("ref")];
  expect(ref).toEqual(old);
  for (let step = 0; step < 3; step++) expect((await trainer.update(update)).nonFinite).toBeNull();
  expect(await score("ref")).toEqual(ref);
  expect(await score("old")).not.toEqual(old);
  function score(as: "old" | "ref") {
    return trainer.score({ microbatches: [ids], as });
  }
});

// case F4
test("a checkpoint holds the adapters alone; the step after loading is the one that would have followed", async () => {
  const trainer = await start();
  for (let step = 0; step < 3; step++) await trainer.update(update);
  await snapshot(trainer);
  const { entries } = readSafetensorsHeader(join(directory, "rank0.safetensors"));
  const count = adapterUnits(policy.units)
    .flatMap(({ parameters }) => parameters)
    .reduce((sum, { shape }) => sum + shape[0]! * shape[1]!, 0);
  expect(entries.map(({ shape }) => shape)).toEqual([[count], [count], [count]]);
  const other = await start({ policy: { ...policy, seed: 5 } });
  expect(await other.loadCheckpoint({ directory })).toEqual({ stepCount: 3 });
  expect(await other.checksum()).toEqual(await trainer.checksum());
  await Promise.all([trainer.update(update), other.update(update)]);
  const continued = await snapshot(trainer);
  expect(await snapshot(other)).toEqual(continued);
});

test("a checkpoint over other weights, another scale or without adapters is refused", async () => {
  await snapshot(await start());
  const load = async (changed: InitParams["policy"]) =>
    (await start({ policy: changed })).loadCheckpoint({ directory });
  await expect(load({ ...policy, weights: tinyModel("ref").weights })).rejects.toThrow(
    /fit the run: base is \w+, this/,
  );
  const units = policy.units.map((unit) => ({ ...unit, adapters: { ...unit.adapters!, scale: 1 } }));
  await expect(load({ ...policy, units })).rejects.toThrow(/fit the run: units is \w+, this/);
  await expect(load(tinyModel("policy"))).rejects.toThrow("units is");
});

test("the export is the sum, which a run without adapters loads; the adapters' has peft's names", async () => {
  const trainer = await start();
  for (let step = 0; step < 2; step++) await trainer.update(update);
  await trainer.exportWeights({ directory });
  const file = join(directory, "model.safetensors");
  const tensors = readSafetensorsHeader(file).entries.map((entry) => ({ ...entry, dtype: "F32" as const, file }));
  const merged = await start({ policy: { ...tinyModel("policy"), weights: tensors } });
  expect(await merged.checksum()).toEqual(await trainer.checksum());
  const scored = await trainer.logprobs({ ids });
  expect(await merged.logprobs({ ids })).toEqual(scored);

  await trainer.exportAdapters({ directory });
  const adapters = readFileSync(join(directory, "adapter_model.safetensors"));
  const found = readSafetensorsHeader(join(directory, "adapter_model.safetensors"));
  expect(found.entries.map(({ name, shape }) => ({ name, shape }))).toEqual(
    adapterUnits(policy.units).flatMap(({ parameters }) => parameters.map(({ name, shape }) => ({ name, shape }))),
  );
  // One rank's shard is its factors end to end.
  const shard = await snapshot(trainer);
  const { entries, dataOffset } = readSafetensorsHeader(join(directory, "rank0.safetensors"));
  const weights = shard.subarray(dataOffset, dataOffset + entries[0]!.bytes);
  expect(adapters.subarray(found.dataOffset).equals(weights)).toBe(true);
});
