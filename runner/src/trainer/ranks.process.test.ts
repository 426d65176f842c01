import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import WebSocket from "ws";
import { childrenOf, commandOf } from "../../test/processes.ts";
import { Mask } from "../agents/types.ts";
import { pack } from "../encoding.ts";
import { sftLoss } from "./fixtures/loss.ts";
import { fixture, fixtureRows, tinyInit, tinyModel } from "./fixtures/tiny.ts";
import { RankGroup } from "./handle.ts";
import type { InitParams } from "./protocol.ts";
import { sftBatch } from "./sft-batch.ts";
import { dropRows, idsOf, planUpdate, putRows, runUpdates } from "./update.ts";

const groups: RankGroup[] = [];
const directory = mkdtempSync(join(tmpdir(), "molt-ranks-"));
afterEach(async () => {
  await Promise.all(groups.splice(0).map((group) => group.stop()));
});
afterAll(() => rmSync(directory, { recursive: true }));

async function start(count: number, changed: Partial<InitParams> = {}, seconds = 60): Promise<RankGroup> {
  const deadlines = { start: seconds, request: seconds };
  const group = await RankGroup.start({ count, init: tinyInit(changed), deadlines });
  groups.push(group);
  return group;
}

async function weights(group: RankGroup): Promise<Float32Array> {
  await group.all("exportWeights", { directory });
  const bytes = readFileSync(join(directory, "model.safetensors"));
  const data = bytes.subarray(8 + Number(bytes.readBigUInt64LE()));
  return new Float32Array(new Uint8Array(data).buffer);
}

const rankPids = () => childrenOf(process.pid).filter((pid) => commandOf(pid).includes("rank --controller"));

function expectClose(actual: Float32Array, expected: Float32Array, tolerance: number): void {
  expect(actual.length).toBe(expected.length);
  const worst = actual.reduce((most, value, index) => Math.max(most, Math.abs(value - expected[index]!)), 0);
  expect(worst).toBeLessThanOrEqual(tolerance);
}

const schedule = () => 0.01;
const half = () => 0.5;

describe("case C4, invariant 3: ranks and microbatches", () => {
  test("one policy update with a KL term is the same for 1 and 2 ranks and for every microbatch size", async () => {
    // With eps of 1 AdamW's first step is lr g / (|g| + 1): weights show gradients, small ones too.
    const optimizer = { betas: [0, 0] as [number, number], eps: 1, weightDecay: 0, maxNorm: 1e9 };
    const results: { weights: Float32Array; metrics: Record<string, number> }[] = [];
    for (const [count, budget] of [
      [1, 1000],
      [1, 12],
      [2, 1000],
      [2, 12],
      [2, 20],
    ] as const) {
      const group = await start(count, { optimizer, ref: tinyModel("ref") });
      const plans = [planUpdate(fixtureRows(), group, budget)];
      await putRows(group, plans);
      const microbatches = (rank: number) => idsOf(plans[0]!.microbatches[rank]!);
      await group.all("score", (rank) => ({ microbatches: microbatches(rank), as: "ref" as const }));
      const settings = { maxTokensPerDevice: budget, schedule: half, klCoef: fixture.spec.kl.coef };
      const { metrics } = await runUpdates(group, plans, settings, 0);
      await dropRows(group, plans);
      results.push({ weights: await weights(group), metrics });
    }
    const [first, ...others] = results;
    // PyTorch float64.
    for (const name of ["policy_loss", "kl"])
      expect(first!.metrics[name]).toBeCloseTo(fixture.sums[name]! / fixture.numTokens, 4);
    expect(first!.metrics.grad_norm! / fixture.gradientNorm).toBeCloseTo(1, 4);
    for (const other of others) {
      expectClose(other.weights, first!.weights, 1e-5);
      for (const [name, value] of Object.entries(first!.metrics))
        expect(other.metrics[name], name).toBeCloseTo(value, 4);
    }
  });

  test("supervised steps on two ranks equal those on one within 1e-5, and learn", async () => {
    const trained = await Promise.all(
      [1, 2].map(async (count) => {
        const group = await start(count, { loss: sftLoss });
        const losses: number[] = [];
        for (let step = 0; step < 5; step++) {
          const { metrics } = await sftBatch(group, fixtureRows(), { maxTokensPerDevice: 24, schedule }, step);
          losses.push(metrics.loss!);
        }
        return { group, losses };
      }),
    );
    const [one, two] = trained;
    expect(one!.losses[4]).toBeLessThan(one!.losses[0]!);
    two!.losses.forEach((loss, step) => {
      expect(loss).toBeCloseTo(one!.losses[step]!, 5);
    });
    expectClose(await weights(two!.group), await weights(one!.group), 1e-5);
  });

  test("more ranks than rows: the ranks without rows run dummies", async () => {
    const group = await start(2, { loss: sftLoss });
    const [row] = fixtureRows();
    const result = await sftBatch(group, [row!], { maxTokensPerDevice: 24, schedule }, 0);
    expect(result).toMatchObject({ updates: 1, tokens: row!.mask.filter((mask) => mask === Mask.trained).length });
  });
});

test("a checkpoint of two ranks restores two ranks, one and three", async () => {
  const two = await start(2, { loss: sftLoss });
  await sftBatch(two, fixtureRows(), { maxTokensPerDevice: 24, schedule }, 0);
  const saved = await two.all("saveCheckpoint", { directory });
  expect(saved.map(({ stepCount }) => stepCount)).toEqual([1, 1]);
  await two.all("checkpointWritten", {});
  const before = await two.all("checksum", {});
  await sftBatch(two, fixtureRows(), { maxTokensPerDevice: 24, schedule }, 1);
  expect(await two.all("checksum", {})).not.toEqual(before);
  await two.all("loadCheckpoint", { directory });
  expect(await two.all("checksum", {})).toEqual(before);
  await sftBatch(two, fixtureRows(), { maxTokensPerDevice: 24, schedule }, 1);
  const next = await weights(two);
  for (const count of [1, 3]) {
    const others = await start(count, { loss: sftLoss });
    expect(await others.all("loadCheckpoint", { directory })).toEqual(new Array(count).fill({ stepCount: 1 }));
    expect((await others.all("checksum", {}))[0]).toEqual(before[0]);
    // With the moments, too, the next step is the same.
    await sftBatch(others, fixtureRows(), { maxTokensPerDevice: 24, schedule }, 1);
    expectClose(await weights(others), next, 1e-5);
  }
});

describe("failures", () => {
  test("a killed rank surfaces as its own death, also to requests that its peers fail", async () => {
    const group = await start(2, { loss: sftLoss });
    group.children[1]!.kill("SIGKILL");
    const update = sftBatch(group, fixtureRows(), { maxTokensPerDevice: 24, schedule }, 0);
    await expect(update).rejects.toThrow("rank 1 was killed by SIGKILL");
    await expect(group.died).rejects.toThrow("rank 1 was killed by SIGKILL");
  });

  test("a rank that does not answer ends the wait at its deadline, by name", async () => {
    const group = await start(1, { loss: sftLoss });
    group.children[0]!.kill("SIGSTOP");
    const late = group.call(0, "checksum", {}, 0.3);
    await expect(late).rejects.toThrow("waited 0.3 s for rank 0 to answer checksum");
    group.children[0]!.kill("SIGCONT");
  });

  test("a rank that cannot initialize says why and leaves no process", async () => {
    const policy = tinyInit().policy;
    const weights = policy.weights!.map((tensor) => ({ ...tensor, file: "/nonexistent/model.safetensors" }));
    await expect(start(2, { policy: { ...policy, weights } })).rejects.toThrow(/rank \d: init: .*nonexistent/);
    expect(rankPids()).toEqual([]);
  });

  test("strangers without the run's token are turned away", async () => {
    const group = await start(1, { loss: sftLoss });
    for (const greeting of ["no message of ours", pack(null), pack({ rank: 0, token: "guess" })]) {
      const stranger = new WebSocket(group.url);
      stranger.on("open", () => stranger.send(greeting));
      await new Promise((resolve) => stranger.once("close", resolve));
    }
    expect((await group.all("checksum", {})).length).toBe(1);
    expect(rankPids()).toHaveLength(1);
  });
});
