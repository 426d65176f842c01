import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { findCheckpoint, type LoopState, pruneCheckpoints, saveCheckpoint } from "./checkpoint.ts";

const stateAt = (step: number): LoopState => ({
  format: 1,
  step,
  policyVersion: step,
  updates: step,
  skippedInARow: 0,
  prompts: { length: 4, seed: 1, epoch: 0, consumed: [], attempts: [] },
  untrained: [
    {
      groupId: "g",
      promptId: "p",
      admittedVersion: 2,
      attempt: 0,
      failed: [],
      rollouts: [
        {
          runId: "r",
          promptId: "p",
          groupId: "g",
          rolloutId: "g/0",
          attempt: 0,
          reward: 1,
          score: 1,
          info: {},
          stop: "stop",
          timings: { startedAt: 0, seconds: 1, modelSeconds: 1 },
          segments: [
            {
              tokens: Int32Array.of(1, 2),
              mask: Uint8Array.of(0, 1),
              logprobs: Float32Array.of(Number.NaN, -0.5),
              versions: Int32Array.of(-1, 2),
              turns: [{ start: 1, end: 2, callId: "c", stop: "stop", temperature: 1 }],
            },
          ],
        },
      ],
    },
  ],
  datasetFingerprint: "f",
  worldSize: 1,
});

describe("checkpoints", () => {
  let root: string;
  const broken: string[] = [];
  const save = (step: number) =>
    saveCheckpoint(root, stateAt(step), async (directory) =>
      writeFileSync(join(directory, "rank0.safetensors"), "shard"),
    );

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), "checkpoint-"));
    broken.length = 0;
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));

  it("come back as they were, NaN and typed arrays included", async () => {
    await save(3);
    const found = findCheckpoint(root, (message) => broken.push(message));
    expect(found?.state).toEqual(stateAt(3));
    expect(found!.state.untrained[0]!.rollouts[0]!.segments[0]!.logprobs).toBeInstanceOf(Float32Array);
    expect(broken).toEqual([]);
  });

  it("the newest complete one is found whatever is broken above it", async () => {
    await save(1);
    const cut = await save(2);
    truncateSync(join(cut, "rank0.safetensors"), 2);
    const changed = await save(3);
    writeFileSync(join(changed, "rank0.safetensors"), "shar?");
    const bare = await save(4);
    rmSync(join(bare, "manifest.json"));
    mkdirSync(join(root, "step-000005.part")); // killed while saving
    expect(findCheckpoint(root, (message) => broken.push(message))?.state.step).toBe(1);
    expect(broken).toEqual([
      "checkpoint step-000004 is passed over: it has no manifest",
      "checkpoint step-000003 is passed over: rank0.safetensors does not match its checksum",
      "checkpoint step-000002 is passed over: rank0.safetensors has 2 bytes of 5",
    ]);
  });

  it("a save that fails leaves the one before it and nothing under its own name", async () => {
    await save(1);
    const failing = saveCheckpoint(root, stateAt(2), () => Promise.reject(new Error("disk full")));
    await expect(failing).rejects.toThrow("disk full");
    expect(existsSync(join(root, "step-000002"))).toBe(false);
    expect(findCheckpoint(root, () => {})?.state.step).toBe(1);
    await save(2);
    expect(findCheckpoint(root, () => {})?.state.step).toBe(2);
  });

  it("pruning keeps the newest", async () => {
    for (const step of [1, 2, 3]) await save(step);
    pruneCheckpoints(root, 2, () => {});
    expect(readdirSync(root).sort()).toEqual(["step-000002", "step-000003"]);
  });
});
