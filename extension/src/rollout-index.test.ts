import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it, onTestFinished } from "vitest";
import type { Group, Rollout } from "../../runner/src/agents/types.ts";
import { type GroupRecord, RolloutStore } from "../../runner/src/telemetry/shards.ts";
import { RolloutIndex } from "./rollout-index.ts";
import { rowsAPage } from "./rollout-view.ts";

function record(groupId: string, rewards: number[], dropped?: string): GroupRecord {
  const ids = { runId: "r", promptId: groupId, groupId, attempt: 0 };
  const rollouts = rewards.map((reward, member): Rollout => {
    const length = 2 + member;
    const segment = {
      tokens: new Int32Array(length),
      mask: new Uint8Array(length).fill(1, 1),
      logprobs: new Float32Array(length),
      versions: new Int32Array(length),
      turns: [],
    };
    const said = { reward, score: reward, info: {}, timings: { startedAt: 0, seconds: 1, modelSeconds: 1 } };
    const stop = reward > 0 ? "env_done" : "length";
    return { ...ids, rolloutId: `${groupId}/${member}`, segments: [segment], stop, ...said };
  });
  const group: Group = { ...ids, epoch: 0, admittedVersion: 0, rollouts, failed: [] };
  return { group, ...(dropped !== undefined && { dropped: { reason: dropped } }) };
}

const newest = { sort: "step", descending: true, page: 0 } as const;

async function indexOf(steps: Record<number, GroupRecord[]>) {
  const directory = mkdtempSync(join(tmpdir(), "index-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  const store = new RolloutStore(directory, (message) => expect.fail(message));
  const write = async (more: Record<number, GroupRecord[]>) => {
    for (const [step, groups] of Object.entries(more)) await store.add(Number(step), groups);
    await store.flush();
  };
  await write(steps);
  const index = new RolloutIndex(directory);
  await index.refresh(false);
  return { index, write };
}

it("lists the newest first, filters and sorts; what has no value comes last", async () => {
  const failed = record("c", [1]);
  failed.group.failed.push({ ...failed.group.rollouts[0]!, rolloutId: "c/1", reason: "engine", message: "died" });
  const { index } = await indexOf({ 1: [record("a", [0, 1])], 2: [record("b", [0.5], "no_signal"), failed] });
  const ids = (query: Partial<Parameters<typeof index.query>[0]>) =>
    index.query({ ...newest, ...query }).rows.map(({ rollout }) => rollout);
  expect(ids({})).toEqual(["c/1", "c/0", "b/0", "a/1", "a/0"]);
  expect(ids({ sort: "reward" })).toEqual(["c/0", "a/1", "b/0", "a/0", "c/1"]);
  expect(ids({ sort: "reward", descending: false })).toEqual(["a/0", "b/0", "c/0", "a/1", "c/1"]);
  expect(ids({ sort: "rollout", descending: false })).toEqual(["a/0", "a/1", "b/0", "c/0", "c/1"]);
  expect(ids({ reward: [0.5, 1] })).toEqual(["c/0", "b/0", "a/1"]);
  expect(ids({ tokens: [3, 9] })).toEqual(["a/1"]);
  expect(ids({ stop: "length", step: 1 })).toEqual(["a/0"]);
  expect(ids({ dropped: "no_signal" })).toEqual(["b/0"]);
  expect(ids({ group: "a" })).toEqual(["a/1", "a/0"]);
  expect(index.query(newest)).toMatchObject({ stops: ["env_done", "infra", "length"], drops: ["engine", "no_signal"] });
  expect(index.find("b")).toMatchObject({ rollout: "b/0", step: 2, dropped: "no_signal" });
});

it("lists the rollouts of evals where they are asked for, or there are no others", async () => {
  const { index } = await indexOf({ 1: [record("a", [0]), record("e", [1], "eval")] });
  const ids = (one: RolloutIndex, dropped?: string) =>
    one.query({ ...newest, dropped }).rows.map(({ rollout }) => rollout);
  expect(ids(index)).toEqual(["a/0"]);
  expect(ids(index, "eval")).toEqual(["e/0"]);
  expect(ids((await indexOf({ 1: [record("e", [1], "eval")] })).index)).toEqual(["e/0"]);
});

it("reads anew only when it is asked to", async () => {
  const { index, write } = await indexOf({ 1: [record("a", [0])], 2: [record("b", [0])] });
  await write({ 2: [record("c", [0])], 3: [record("d", [0])] });
  await index.refresh(false);
  expect(index.query(newest).stored).toBe(2);
  await index.refresh(true);
  expect(index.query(newest).rows.map(({ rollout }) => rollout)).toEqual(["d/0", "c/0", "b/0", "a/0"]);
});

it("gives thousands by pages", async () => {
  const groups = Array.from({ length: 300 }, (_, at) => record(`g${at}`, [0, 1, 0, 1, 0, 1, 0, 1]));
  const { index } = await indexOf({ 1: groups });
  const pages = Array.from({ length: 25 }, (_, page) => index.query({ ...newest, page }));
  expect(pages[0]).toMatchObject({ matching: 2400, stored: 2400 });
  expect(pages.map(({ rows }) => rows.length)).toEqual([...new Array(24).fill(rowsAPage), 0]);
  expect(new Set(pages.flatMap(({ rows }) => rows.map(({ rollout }) => rollout))).size).toBe(2400);
});
