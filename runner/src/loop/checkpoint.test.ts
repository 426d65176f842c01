import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import {
  bestCheckpoint,
  findCheckpoint,
  type LoopState,
  pruneCheckpoints,
  removePartialCheckpoints,
  saveCheckpoint,
} from "./checkpoint.ts";

/** The disk, on which changes can be made to fail; a torn write leaves half of its bytes. */
const whole = () => false;
const disk = vi.hoisted(() => ({ fails: (_call: string, _path: string): boolean => false, torn: false }));
vi.mock("node:fs", async (importOriginal) => {
  const fs = await importOriginal<typeof import("node:fs")>();
  const change =
    (call: string, real: (...args: unknown[]) => unknown) =>
    (...args: unknown[]) => {
      if (!disk.fails(call, String(args[0]))) return real(...args);
      if (disk.torn && call === "writeFileSync") {
        const data = Buffer.from(args[1] as string | Uint8Array);
        fs.writeFileSync(args[0] as number, data.subarray(0, data.length / 2));
      }
      throw new Error(`EIO: ${call}`);
    };
  const { mkdirSync, renameSync, rmSync, writeFileSync, fsyncSync } = fs;
  const changes = { mkdirSync, renameSync, rmSync, writeFileSync, fsyncSync };
  const failing = Object.entries(changes).map(([call, real]) => [call, change(call, real as never)]);
  return { ...fs, ...Object.fromEntries(failing) };
});

const stateAt = (step: number): LoopState => ({
  step,
  policyVersion: step,
  updates: step,
  skippedInARow: 0,
  prompts: { length: 4, seed: 1, begun: 0, attempts: [] },
  untrained: [
    {
      groupId: "g",
      promptId: "p",
      epoch: 0,
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
  recipeHash: "h",
  worldSize: 1,
});

describe("checkpoints", () => {
  let root: string;
  const broken: string[] = [];
  const save = (step: number) =>
    saveCheckpoint(root, stateAt(step), async (directory) =>
      writeFileSync(join(directory, "rank0.safetensors"), "shard"),
    );

  const keep = (count: number, bytes = Number.POSITIVE_INFINITY, best?: number) => ({ count, bytes, best });
  /** Evals of steps whose versions are a hundred more. */
  const evals = (scores: [step: number, metrics: Record<string, number>][]) => ({
    evals: scores.map(([step, metrics]) => ({
      type: "eval" as const,
      time: 0,
      step,
      policyVersion: 100 + step,
      metrics,
    })),
  });
  const find = () => findCheckpoint(root, (message) => broken.push(message));

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), "checkpoint-"));
    broken.length = 0;
  });
  afterEach(() => {
    disk.fails = whole;
    rmSync(root, { recursive: true, force: true });
  });

  it("come back as they were, NaN and typed arrays included", async () => {
    await save(3);
    const found = await find();
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
    expect((await find())?.state.step).toBe(1);
    expect(broken).toEqual([
      "checkpoint step-000004 is passed over: it has no manifest",
      "checkpoint step-000003 is passed over: rank0.safetensors does not match its checksum",
      "checkpoint step-000002 is passed over: rank0.safetensors has 2 bytes of 5",
    ]);
  });

  it("a save that fails leaves the one before it and nothing under its own name", async () => {
    await save(1);
    const failing = saveCheckpoint(root, stateAt(2), () => Promise.reject(new Error("disk full")));
    await expect(failing).rejects.toThrow(`checkpoint ${join(root, "step-000002")} could not be written: disk full`);
    expect(readdirSync(root)).toEqual(["step-000001"]); // a full disk has its room back
    expect((await find())?.state.step).toBe(1);
    await save(2);
    expect((await find())?.state.step).toBe(2);
  });

  it("pruning keeps the newest", async () => {
    for (const step of [1, 2, 3]) await save(step);
    pruneCheckpoints(root, 3, keep(2), () => {});
    expect(readdirSync(root).sort()).toEqual(["step-000002", "step-000003"]);
  });

  it("pruning keeps no more bytes than may be, the newest always", async () => {
    for (const step of [1, 2, 3]) await save(step);
    const bytes = ["loop.msgpack", "manifest.json", "rank0.safetensors"]
      .map((file) => readFileSync(join(root, "step-000003", file)).length)
      .reduce((sum, size) => sum + size);
    pruneCheckpoints(root, 3, keep(3, 2 * bytes), () => {});
    expect(readdirSync(root).sort()).toEqual(["step-000002", "step-000003"]);
    pruneCheckpoints(root, 3, keep(3, 1), () => {});
    expect(readdirSync(root)).toEqual(["step-000003"]);
  });

  it("the best by its eval stays beside those that count, the later of two as good", async () => {
    const scores = [0.5, 0.9, 0.9].map((accuracy, at): [number, { accuracy: number }] => [at + 1, { accuracy }]);
    for (const step of [1, 2, 3, 4, 5]) {
      await save(step);
      // That of step 9 has no checkpoint.
      const best = bestCheckpoint(root, evals([...scores, [9, { accuracy: 1 }]]), "accuracy")?.step;
      pruneCheckpoints(root, step, keep(1, Number.POSITIVE_INFINITY, best), () => {});
    }
    expect(readdirSync(root).sort()).toEqual(["step-000003", "step-000005"]);
  });

  it("the best is labelled with the version that was evaluated, not the newest when it was saved", async () => {
    for (const step of [1, 2, 3]) await save(step);
    const run = evals([
      [1, { accuracy: 0.5, sampled: 0.9, loss: Number.NaN }],
      [2, { accuracy: 0.7, sampled: 0.2 }],
      [3, { accuracy: Number.NaN }],
    ]);
    const best = bestCheckpoint(root, run, "accuracy");
    expect(best).toEqual({ step: 2, policy_version: 102, metric: "accuracy", value: 0.7 });
    expect(bestCheckpoint(root, run, "sampled")).toMatchObject({ step: 1, policy_version: 101 });
    expect(bestCheckpoint(root, run, "pass@4")).toBeNull();
    expect(bestCheckpoint(root, run, null)).toBeNull();
  });

  it("of losses the least is best, of itself where evals measure one", async () => {
    for (const step of [1, 2, 3]) await save(step);
    const run = evals([
      [1, { loss: 1.5, "a/loss": 2 }],
      [2, { loss: 0.5, "a/loss": 3 }],
      [3, { loss: 0.75, "a/loss": 2.5 }],
    ]);
    expect(bestCheckpoint(root, run, "auto")).toMatchObject({ step: 2, metric: "loss", value: 0.5 });
    expect(bestCheckpoint(root, run, "a/loss")).toMatchObject({ step: 1 });
    expect(bestCheckpoint(root, evals([[1, { accuracy: 0 }]]), "auto")).toMatchObject({ step: 1, metric: "accuracy" });
  });

  it("one that cannot be read is passed over, as when the run that owns it removes it meanwhile", async () => {
    await save(1);
    const second = await save(2);
    rmSync(join(second, "rank0.safetensors"));
    mkdirSync(join(second, "rank0.safetensors"));
    const third = await save(3);
    rmSync(join(third, "loop.msgpack"));
    writeFileSync(join(await save(4), "manifest.json"), "{");
    expect((await find())?.state.step).toBe(1);
    expect(broken).toEqual([
      expect.stringMatching(/^checkpoint step-000004 is passed over: .*JSON/),
      expect.stringMatching(/^checkpoint step-000003 is passed over: ENOENT.*loop.msgpack/),
      expect.stringMatching(/^checkpoint step-000002 is passed over: EISDIR/),
    ]);
  });

  it("that of a step is found, and one of another format is refused with the way out", async () => {
    await save(1);
    const second = await save(2);
    expect((await findCheckpoint(root, () => {}, 1))?.state.step).toBe(1);
    expect(await findCheckpoint(root, () => {}, 3)).toBeNull();
    const manifest = join(second, "manifest.json");
    expect(JSON.parse(readFileSync(manifest, "utf8"))).toMatchObject({ recipeHash: "h", datasetFingerprint: "f" });
    writeFileSync(manifest, readFileSync(manifest, "utf8").replace('"format": 2', '"format": 1'));
    await expect(find()).rejects.toThrow("step-000002 is of format 1, this version reads 2");
  });

  // case F3
  it("a broken one above is not what pruning keeps", async () => {
    await save(1);
    truncateSync(join(await save(4), "rank0.safetensors"), 2);
    expect((await find())?.state.step).toBe(1);
    await save(2);
    pruneCheckpoints(root, 2, keep(2), () => {});
    expect(readdirSync(root).sort()).toEqual(["step-000001", "step-000002", "step-000004"]);
    pruneCheckpoints(root, 2, keep(1), () => {});
    expect(readdirSync(root).sort()).toEqual(["step-000002", "step-000004"]);
    expect((await find())?.state.step).toBe(2);
    await save(4); // the name is free for a good one
    expect((await find())?.state.step).toBe(4);
  });

  // case F3: an old directory that cannot be removed is said, and nothing else is lost
  it("one that cannot be removed is named", async () => {
    await save(1);
    await save(2);
    disk.fails = (call, path) => call === "rmSync" && path.endsWith("step-000001");
    const problems: string[] = [];
    pruneCheckpoints(root, 2, keep(1), (message) => problems.push(message));
    expect(problems).toEqual(["old checkpoint step-000001 stays: EIO: rmSync"]);
    expect((await find())?.state.step).toBe(2);
  });

  // case F3, invariant 6: the process ends before the nth change of the disk, or in the middle of it
  it.each([false, true])("killed at any write (a torn one: %s), it leaves the newest complete one", async (torn) => {
    disk.torn = torn;
    let changes = 0;
    for (let killAt = 1; ; killAt++) {
      rmSync(root, { recursive: true, force: true });
      await save(1);
      changes = 0;
      disk.fails = () => ++changes >= killAt;
      await save(2)
        .then(() => pruneCheckpoints(root, 2, keep(1), () => {}))
        .catch(() => {});
      disk.fails = whole;
      const found = await find();
      expect(found?.state, `killed at change ${killAt}`).toEqual(stateAt(found!.state.step));
      if (found!.state.step === 1) await save(2);
      pruneCheckpoints(root, 2, keep(1), () => {});
      removePartialCheckpoints(root);
      expect(readdirSync(root)).toEqual(["step-000002"]);
      if (changes < killAt) break;
    }
    expect(changes).toBeGreaterThan(8);
  });

  it("what a broken save has left is taken away, and nothing else", async () => {
    await save(1);
    mkdirSync(join(root, "step-000002.part"));
    writeFileSync(join(root, "step-000002.part", "rank0.safetensors"), "sh");
    removePartialCheckpoints(root);
    removePartialCheckpoints(join(root, "absent"));
    expect(readdirSync(root)).toEqual(["step-000001"]);
  });
});
