import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, it, onTestFinished } from "vitest";
import type { Group } from "../agents/types.ts";
import { pack } from "../encoding.ts";
import { findRollout, findRollouts, RolloutStore, readRollouts, type StoredGroup } from "./shards.ts";

/** One rollout of `tokens` tokens, two of which were sampled. */
function group(name: string, tokens = 4): Group {
  const ids = { runId: "r", promptId: name, groupId: name, rolloutId: `${name}/0`, attempt: 0 };
  const segment = {
    tokens: Int32Array.from({ length: tokens }, (_, index) => index),
    mask: new Uint8Array(tokens).fill(1, tokens - 2),
    logprobs: new Float32Array(tokens).fill(Number.NaN).fill(-0.5, tokens - 2),
    versions: new Int32Array(tokens).fill(-1).fill(3, tokens - 2),
    turns: [{ start: tokens - 2, end: tokens, callId: "c", stop: "stop" as const, temperature: 1 }],
  };
  const scores = { reward: 0.5, score: 0.5, info: {}, stop: "stop" as const };
  const timings = { startedAt: 1, seconds: 2, modelSeconds: 1 };
  const rollouts = [{ ...ids, segments: [segment], ...scores, timings }];
  return { groupId: name, promptId: name, epoch: 0, admittedVersion: 3, attempt: 0, rollouts, failed: [] };
}

async function all(stored: AsyncGenerator<StoredGroup>): Promise<StoredGroup[]> {
  const groups = [];
  for await (const one of stored) groups.push(one);
  return groups;
}

const names = (stored: StoredGroup[]) => stored.map(({ step, group: { groupId } }) => `${step} ${groupId}`);

describe("the rollout store", () => {
  let directory: string;
  let warnings: string[];
  const store = (shardBytes?: number, everySteps?: number) =>
    new RolloutStore(directory, (message) => warnings.push(message), everySteps, shardBytes);
  const shards = () => readdirSync(join(directory, "rollouts")).sort();

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "shards-"));
    warnings = [];
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  });

  it("keeps evals' rollouts after their step's, one eval a step, and none later than a resume", async () => {
    const writer = store();
    for (const step of [1, 2, 3]) await writer.add(step, [{ group: group(`t${step}`) }]);
    // Evals end late, and that of step 2 was made twice.
    for (const name of ["old", "e2"]) await writer.addEval(2, [group(name)]);
    await writer.addEval(0, [group("e0"), group("f0")]);
    await writer.addEval(3, [group("e3")]);
    await writer.flush();
    const found = await all(readRollouts(directory));
    expect(names(found)).toEqual(["0 e0", "0 f0", "1 t1", "2 t2", "2 e2", "3 t3", "3 e3"]);
    expect(found[0]).toEqual({ step: 0, group: group("e0"), dropped: { reason: "eval" } });
    expect(names(await all(readRollouts(directory, { step: 2 })))).toEqual(["2 t2", "2 e2"]);
    expect(await findRollout(directory, "e2/0")).toMatchObject({ step: 2, dropped: { reason: "eval" } });
    const resumed = store();
    await resumed.add(2, [{ group: group("u2") }]);
    await resumed.flush();
    expect(names(await all(readRollouts(directory)))).toEqual(["0 e0", "0 f0", "1 t1", "2 u2", "2 e2"]);
    await store(undefined, 0).addEval(9, [group("none")]);
    expect(names(await all(readRollouts(directory, { step: 9 })))).toEqual([]);
    expect(warnings).toEqual([]);
  });

  it("gives back what a step trained and what it dropped, token by token", async () => {
    const writer = store();
    await writer.add(1, [{ group: group("a") }, { group: group("b"), dropped: { reason: "stale" } }]);
    await writer.flush();
    const stored = await all(readRollouts(directory));
    expect(stored).toEqual([
      { step: 1, group: group("a") },
      { step: 1, group: group("b"), dropped: { reason: "stale" } },
    ]);
    expect(stored[0]!.group.rollouts[0]!.segments[0]!.logprobs).toBeInstanceOf(Float32Array);
    expect(await findRollout(directory, "b/0")).toMatchObject({ step: 1, rollout: { rolloutId: "b/0" } });
    expect(await findRollouts(directory, "b")).toMatchObject({ step: 1, rollouts: group("b").rollouts });
    await expect(findRollout(directory, "b")).rejects.toThrow("b is a group: name one of its rollouts");
    await expect(findRollout(directory, "b/1")).rejects.toThrow("the run has stored no rollout b/1");
    expect(await all(readRollouts(join(directory, "elsewhere")))).toEqual([]);
  });

  it("keeps what training made of the tokens beside them", async () => {
    const ofTokens = (...values: number[]) => Float32Array.from(values);
    const row = { advantages: ofTokens(0.5, 0.5), logprobs: ofTokens(-0.5, Number.NaN), entropy: ofTokens(1, 2) };
    const writer = store();
    await writer.add(1, [{ group: group("a"), trained: { "a/0/0": row } }]);
    await writer.flush();
    expect(await findRollout(directory, "a/0")).toMatchObject({ trained: { "a/0/0": row } });
  });

  it("begins a shard when one has passed the cap, and reads one step of them", async () => {
    const small = store(1000);
    // Of 13 bytes a token: 1,300 and more.
    for (let step = 1; step <= 3; step++) await small.add(step, [{ group: group(`s${step}`, 100) }]);
    await small.add(4, [{ group: group("s4", 4) }]);
    await small.add(5, [{ group: group("s5", 4) }]);
    await small.flush();
    const files = [1, 2, 3, 4].map((step) => `shard-00000${step}.msgpack`);
    expect(shards()).toEqual(files);
    for (const name of files) expect(statSync(join(directory, "rollouts", name)).size).toBeLessThan(3000);
    expect(names(await all(readRollouts(directory)))).toEqual(["1 s1", "2 s2", "3 s3", "4 s4", "5 s5"]);
    expect(names(await all(readRollouts(directory, { step: 5 })))).toEqual(["5 s5"]);
  });

  it("keeps a step in one shard, though it comes in parts", async () => {
    const writer = store(1);
    await writer.add(1, [{ group: group("a") }]);
    await writer.add(2, [{ group: group("b") }]);
    await writer.add(2, [{ group: group("c") }]);
    await writer.flush();
    expect(shards()).toEqual(["shard-000001.msgpack", "shard-000002.msgpack"]);
    expect(names(await all(readRollouts(directory)))).toEqual(["1 a", "2 b", "2 c"]);
  });

  it.each([
    [2, ["2 s2", "4 s4"]],
    [0, []],
  ])("with logger.rollout_steps %i stores those steps alone", async (everySteps, stored) => {
    const writer = store(undefined, everySteps);
    for (const step of [1, 2, 3, 4]) await writer.add(step, [{ group: group(`s${step}`) }]);
    await writer.flush();
    expect(names(await all(readRollouts(directory)))).toEqual(stored);
  });

  it("replaces the steps that a resumed run makes again", async () => {
    const killed = store(1000);
    for (let step = 1; step <= 4; step++) await killed.add(step, [{ group: group(`old${step}`, 30) }]);
    await killed.flush();
    expect(shards()).toEqual(["shard-000001.msgpack", "shard-000003.msgpack"]);
    const resumed = store(1000);
    await resumed.add(2, [{ group: group("new2") }]);
    await resumed.flush();
    expect(names(await all(readRollouts(directory)))).toEqual(["1 old1", "2 new2"]);
    expect(shards()).toEqual(["shard-000001.msgpack", "shard-000002.msgpack"]);
  });

  // case F3
  it("reads all whole groups of a shard that was cut off anywhere", async () => {
    const writer = store();
    await writer.add(1, [{ group: group("a") }, { group: group("b") }]);
    await writer.flush();
    const path = join(directory, "rollouts", "shard-000001.msgpack");
    const bytes = readFileSync(path);
    const first = 4 + bytes.readUInt32LE();
    for (const size of [0, 1, 4, 5, first - 1, first, first + 3, first + 4, bytes.length - 1, bytes.length]) {
      writeFileSync(path, bytes.subarray(0, size));
      const expected = ["1 a", "1 b"].slice(0, Number(size >= first) + Number(size === bytes.length));
      expect(names(await all(readRollouts(directory)))).toEqual(expected);
    }
  });

  it("reads all whole groups of a shard whose tail is zeros, and refuses one broken in its middle", async () => {
    const writer = store();
    await writer.add(1, [{ group: group("a") }, { group: group("b"), dropped: { reason: "stale" } }]);
    await writer.flush();
    const path = join(directory, "rollouts", "shard-000001.msgpack");
    const bytes = readFileSync(path);
    const first = 4 + bytes.readUInt32LE();
    for (const kept of [first, first + 1, first + 4, first + 20, first + 100, bytes.length - 10, bytes.length]) {
      for (const more of [0, 3, 4, 5000]) {
        writeFileSync(path, Buffer.concat([bytes.subarray(0, kept), Buffer.alloc(bytes.length - kept + more)]));
        const expected = ["1 a", "1 b"].slice(0, kept === bytes.length ? 2 : 1);
        expect(names(await all(readRollouts(directory)))).toEqual(expected);
      }
    }
    writeFileSync(path, Buffer.concat([bytes.subarray(0, 10), Buffer.alloc(first - 10), bytes.subarray(first)]));
    await expect(all(readRollouts(directory))).rejects.toThrow();
  });

  it("warns once where it cannot write, and stores again when it can", async () => {
    writeFileSync(join(directory, "rollouts"), "in the way");
    const writer = store();
    for (const step of [1, 2]) await writer.add(step, [{ group: group("lost") }]);
    await writer.flush();
    expect(warnings).toEqual([expect.stringMatching(/^rollouts of step 1 are not stored: EEXIST/)]);
    rmSync(join(directory, "rollouts"));
    await writer.add(3, [{ group: group("kept") }]);
    await writer.flush();
    expect(names(await all(readRollouts(directory)))).toEqual(["3 kept"]);
  });

  it("refuses another version's format", async () => {
    const writer = store();
    await writer.add(1, []);
    await writer.flush();
    const frame = pack({ format: 2, step: 1 });
    const length = Buffer.alloc(4);
    length.writeUInt32LE(frame.length);
    writeFileSync(join(directory, "rollouts", "shard-000001.msgpack"), Buffer.concat([length, frame]));
    await expect(all(readRollouts(directory))).rejects.toThrow("is of format 2, not 1");
  });
});
