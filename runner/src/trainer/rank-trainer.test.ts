import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { readSafetensorsHeader } from "../data/safetensors.ts";
import { sftLoss } from "./fixtures/loss.ts";
import { criticFixture, criticRows, fixture, fixtureRows, tinyCritic, tinyInit, tinyModel } from "./fixtures/tiny.ts";
import type { InitParams } from "./protocol.ts";
import { RankTrainer } from "./rank-trainer.ts";

const trainers: RankTrainer[] = [];
let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "molt-rank-"));
});
afterEach(() => {
  rmSync(directory, { recursive: true });
  for (const trainer of trainers.splice(0)) trainer.close();
});

async function start(changed: Partial<InitParams> = {}): Promise<RankTrainer> {
  const trainer = new RankTrainer(0);
  trainers.push(trainer);
  const store = { host: "127.0.0.1", port: 0, timeoutMs: 1000 };
  await trainer.init({ ...tinyInit(changed), worldSize: 1, store });
  return trainer;
}

/** Weights, moments and step count as bytes. */
async function snapshot(trainer: RankTrainer): Promise<Buffer> {
  const { file } = await trainer.saveCheckpoint({ directory });
  await trainer.checkpointWritten();
  return readFileSync(file);
}

const ids = fixtureRows().map((row) => row.id);
const rates = { learningRate: 0.01, criticLearningRate: null };
const update = { microbatches: [ids], numTokens: fixture.numTokens, ...rates, klCoef: fixture.spec.kl.coef };
const plainLoss = { ...fixture.spec, kl: { coef: 0, estimator: "k3" as const, inReward: false } };
const unscored = () => fixtureRows().map(({ old: _, ...row }) => row);

describe.each([0.5, 1, 1.5])("case B1, invariant 2: at temperature %s", (temperature) => {
  test("the ratio on unchanged weights is 1 to 1e-5, however rows are packed", async () => {
    const trainer = await start({ loss: plainLoss });
    const rows = unscored().map((row) => ({ ...row, temperatures: row.temperatures.fill(temperature) }));
    await trainer.putRows({ rows });
    await trainer.score({ microbatches: ids.map((id) => [id]), as: "old" });
    const { maxima, sums } = await trainer.update({ ...update, learningRate: 0 });
    expect(maxima.ratio_gap_max).toBeLessThanOrEqual(1e-5);
    expect(sums.ratio_mean! / fixture.numTokens).toBeCloseTo(1, 5);
    expect(sums.clip_ratio).toBe(0);
  });

  test("unscored rows take the detached current policy as the old one: the ratio is exactly 1", async () => {
    const trainer = await start({ loss: plainLoss });
    await trainer.putRows({
      rows: unscored().map((row) => ({ ...row, temperatures: row.temperatures.fill(temperature) })),
    });
    const { maxima, sums } = await trainer.update(update);
    expect([maxima.ratio_gap_max, sums.policy_kl]).toEqual([0, 0]);
  });
});

test("the reference is scored without gradient and gives the KL of PyTorch float64", async () => {
  const trainer = await start({ ref: tinyModel("ref") });
  await trainer.putRows({ rows: fixtureRows() });
  await trainer.score({ microbatches: [ids.slice(0, 3), ids.slice(3)], as: "ref" });
  const { sums } = await trainer.update(update);
  expect(Math.abs(sums.kl! / fixture.sums.kl! - 1)).toBeLessThanOrEqual(1e-5);
});

test("what an update found of each token comes back when its rows are dropped", async () => {
  const trainer = await start({ loss: plainLoss });
  const rows = fixtureRows();
  await trainer.putRows({ rows });
  await trainer.update(update);
  const { found } = await trainer.dropRows({ ids });
  rows.forEach(({ mask, old }, index) => {
    const trained = (values: Float32Array) => [...values].map((value, t) => (mask[t] === 1 ? value : 0));
    expect([...found[index]!.trainerLogprobs!]).toEqual(trained(old));
  });
  // PyTorch float64.
  const nats = found.reduce((sum, { entropy }) => entropy!.reduce((all, value) => all + value, sum), 0);
  expect(Math.abs(nats / fixture.sums.entropy! - 1)).toBeLessThanOrEqual(1e-5);
  await expect(trainer.logprobs({ ids })).rejects.toThrow(`rank 0 holds no row ${ids[0]}`);
});

test("what a rank does not hold is refused by name", async () => {
  const trainer = await start();
  await expect(trainer.logprobs({ ids: ["absent"] })).rejects.toThrow("rank 0 holds no row absent");
  await expect(trainer.score({ microbatches: [[]], as: "ref" })).rejects.toThrow("no model was loaded that gives ref");
  await expect(new RankTrainer(0).checksum()).rejects.toThrow("the first request to a rank is init");
});

describe("case C8", () => {
  test("a gradient that is not finite names its tensors and changes no bit of weights, moments and steps", async () => {
    const trainer = await start({ loss: plainLoss });
    await trainer.putRows({ rows: fixtureRows() });
    await trainer.update(update);
    const before = await snapshot(trainer);
    const poisoned = fixtureRows()[0]!.advantages.fill(Number.NaN);
    await trainer.putAdvantages({ rows: [{ id: ids[0]!, advantages: poisoned, share: 1 }] });
    const result = await trainer.update(update);
    expect(result.nonFinite).toEqual(
      expect.arrayContaining(["model.layers.0.self_attn.q_proj.weight", "lm_head.weight"]),
    );
    expect(await snapshot(trainer)).toEqual(before);
    await trainer.putRows({ rows: fixtureRows() });
    expect((await trainer.update(update)).nonFinite).toBeNull();
    expect(await snapshot(trainer)).not.toEqual(before);
  });

  test("an update without a trainable token is refused", async () => {
    const trainer = await start();
    await expect(trainer.update({ ...update, numTokens: 0 })).rejects.toThrow("an update needs a trainable token");
  });
});

test("the gradient is clipped to max_norm", async () => {
  const moments: Float32Array[] = [];
  for (const maxNorm of [1, 0.1]) {
    const trainer = await start({ optimizer: { ...tinyInit().optimizer, maxNorm }, loss: plainLoss });
    await trainer.putRows({ rows: fixtureRows() });
    expect((await trainer.update(update)).gradientNorm).toBeGreaterThan(1);
    const bytes = await snapshot(trainer);
    const { entries } = readSafetensorsHeader(join(directory, "rank0.safetensors"));
    const { offset, shape } = entries.find(({ name }) => name === "policy.exp_avg")!;
    moments.push(new Float32Array(bytes.buffer.slice(bytes.byteOffset + offset), 0, shape[0]!));
  }
  const [wide, narrow] = moments;
  // First moments after one step are (1 - beta1) times the clipped gradient, whose norm is maxNorm.
  expect(Math.hypot(...wide!)).toBeCloseTo(0.1, 4);
  wide!.forEach((value, index) => {
    expect(narrow![index]! * 10).toBeCloseTo(value, 6);
  });
});

test("a layer's graph kept takes the step that recomputing it takes", async () => {
  const taken = [];
  for (const gradientCheckpoint of ["full", "none"] as const) {
    const trainer = await start({ loss: plainLoss, policy: { ...tinyInit().policy, gradientCheckpoint } });
    await trainer.putRows({ rows: fixtureRows() });
    const { gradientNorm, sums } = await trainer.update(update);
    taken.push({ gradientNorm: gradientNorm!, loss: sums.policy_loss! });
  }
  const [full, none] = taken;
  expect(none!.gradientNorm / full!.gradientNorm).toBeCloseTo(1, 6);
  expect(none!.loss).toBeCloseTo(full!.loss, 6);
});

describe("checkpoint", () => {
  test("a step after loading is the step that would have followed, bit for bit", async () => {
    const trainer = await start({ loss: plainLoss });
    await trainer.putRows({ rows: fixtureRows() });
    for (let step = 0; step < 3; step++) await trainer.update(update);
    await snapshot(trainer);
    const other = await start({ loss: plainLoss, policy: { ...tinyInit().policy, weights: null } });
    expect(await other.loadCheckpoint({ directory })).toEqual({ stepCount: 3 });
    await other.putRows({ rows: fixtureRows() });
    await Promise.all([trainer.update(update), other.update(update)]);
    const continued = await snapshot(trainer);
    expect(await snapshot(other)).toEqual(continued);
  });

  test("holds what there was when it was asked for, whatever is trained before it is on the disk", async () => {
    const trainer = await start({ loss: plainLoss });
    await trainer.putRows({ rows: fixtureRows() });
    await trainer.update(update);
    const before = await snapshot(trainer);
    const saved = await trainer.saveCheckpoint({ directory });
    await trainer.update(update);
    await trainer.checkpointWritten();
    expect(readFileSync(saved.file)).toEqual(before);
    expect(await snapshot(trainer)).not.toEqual(before);
    expect(readdirSync("/dev/shm").filter((name) => name.startsWith(`molt-${process.pid}-`))).toEqual([]);
    const failing = trainer
      .saveCheckpoint({ directory: join(directory, "absent") })
      .then(() => trainer.checkpointWritten());
    await expect(failing).rejects.toThrow("absent");
  });

  test("a shard of another run, a cut one and an absent one are refused with the file's name", async () => {
    const trainer = await start();
    const file = join(directory, "rank0.safetensors");
    await expect(trainer.loadCheckpoint({ directory })).rejects.toThrow("no such shard");
    await snapshot(trainer);
    const { policy } = tinyInit();
    const renamed = JSON.parse(JSON.stringify(policy.units).replace("lm_head.weight", "head.weight"));
    const other = await start({ policy: { ...policy, units: renamed, weights: null } });
    const refusal = other.loadCheckpoint({ directory });
    await expect(refusal).rejects.toThrow("this shard does not fit the run: units is");
    await expect(refusal).rejects.toHaveProperty("position.file", file);
    truncateSync(file, readFileSync(file).length - 4);
    await expect(trainer.loadCheckpoint({ directory })).rejects.toThrow("it is cut off");
  });
});

test("the export holds the weights in float32 and loads to the same checksum", async () => {
  const trainer = await start({ loss: sftLoss });
  await trainer.putRows({ rows: fixtureRows() });
  await trainer.update(update);
  await trainer.exportWeights({ directory });
  const file = join(directory, "model.safetensors");
  const tensors = readSafetensorsHeader(file).entries.map((entry) => ({ ...entry, dtype: "F32" as const, file }));
  const loaded = await start({ policy: { ...tinyInit().policy, weights: tensors } });
  expect(await loaded.checksum()).toEqual(await trainer.checksum());
});

test("a loss that does not exist is refused at init", async () => {
  await expect(start({ loss: { ...fixture.spec, name: "pppo" } })).rejects.toThrow("actor.loss_mode: no entry 'pppo'");
});

describe("a critic", () => {
  const criticIds = criticRows().map(({ id }) => id);
  const step = {
    microbatches: [criticIds],
    numTokens: criticFixture.numTokens,
    learningRate: 0.01,
    criticLearningRate: 0.02,
    klCoef: 0,
  };
  const withCritic = () => start({ loss: plainLoss, critic: tinyCritic() });

  test("scores values, and steps beside the policy by its own clipped gradient", async () => {
    const trainer = await withCritic();
    await trainer.putRows({ rows: criticRows() });
    const { logprobs: values } = await trainer.score({ microbatches: [criticIds], as: "values" });
    criticFixture.rows.forEach(({ mask, values: expected }, index) => {
      expected.forEach((value, t) => {
        expect(values[index]![t]!).toBeCloseTo(mask[t] === 1 ? value : 0, 5);
      });
    });
    await trainer.putAdvantages({ rows: criticRows().map(({ id, returns }) => ({ id, returns })) });
    const { checksum } = await trainer.checksum();
    const { sums, gradientNorm, criticGradientNorm } = await trainer.update(step);
    // Half the squared error: no value has moved yet, and nothing is clipped.
    const half = criticFixture.rows.flatMap(({ mask, values, returns }) =>
      values.map((value, t) => (mask[t] === 1 ? (value - returns[t]!) ** 2 / 2 : 0)),
    );
    expect(sums.value_loss! / half.reduce((sum, value) => sum + value, 0)).toBeCloseTo(1, 5);
    expect(sums.value_clip_ratio).toBe(0);
    expect([gradientNorm, criticGradientNorm].every((norm) => norm! > 0)).toBe(true);
    expect((await trainer.checksum()).checksum).not.toBe(checksum);
    const again = await trainer.update(step);
    expect(again.sums.value_loss).toBeLessThan(sums.value_loss!);
  });

  test("is trained alone where the policy stands still, whose weights and moments keep every bit", async () => {
    const trainer = await withCritic();
    await trainer.putRows({ rows: criticRows() });
    const before = await snapshot(trainer);
    const alone = await trainer.update({ ...step, learningRate: null });
    expect(alone.gradientNorm).toBeNull();
    expect(await snapshot(trainer)).toEqual(before);
    const after = await trainer.update({ ...step, learningRate: null });
    expect(after.sums.value_loss).toBeLessThan(alone.sums.value_loss!);
  });

  test("case C8: a gradient of either that is not finite steps neither", async () => {
    const trainer = await withCritic();
    await trainer.putRows({ rows: criticRows() });
    const before = await bothSnapshots(trainer);
    const broken = criticRows()[0]!.returns!.fill(Number.NaN);
    await trainer.putAdvantages({ rows: [{ id: criticIds[0]!, returns: broken }] });
    const { nonFinite } = await trainer.update(step);
    expect(nonFinite).toContain("score.weight");
    expect(nonFinite).not.toContain("lm_head.weight");
    expect(await bothSnapshots(trainer)).toEqual(before);
  });

  test("case F4: weights, moments and steps go on from a checkpoint bit by bit; one without is refused", async () => {
    const trainer = await withCritic();
    await trainer.putRows({ rows: criticRows() });
    await trainer.update(step);
    const saved = await bothSnapshots(trainer);
    const { entries } = readSafetensorsHeader(join(directory, "critic-rank0.safetensors"));
    expect(entries.map(({ name }) => name)).toEqual(["critic.weights", "critic.exp_avg", "critic.exp_avg_sq"]);
    const other = await withCritic();
    await other.loadCheckpoint({ directory });
    expect(await bothSnapshots(other)).toEqual(saved);
    await other.putRows({ rows: criticRows() });
    for (const one of [trainer, other]) await one.update(step);
    expect(await bothSnapshots(other)).toEqual(await bothSnapshots(trainer));
    rmSync(join(directory, "critic-rank0.safetensors"));
    await expect(other.loadCheckpoint({ directory })).rejects.toThrow("this checkpoint has no such shard");
  });

  async function bothSnapshots(trainer: RankTrainer): Promise<Buffer[]> {
    const policy = await snapshot(trainer);
    return [policy, readFileSync(join(directory, "critic-rank0.safetensors"))];
  }
});
