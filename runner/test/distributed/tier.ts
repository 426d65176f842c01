/**
 * One model over 1, 2 and 4 processes, in every mesh of them: the same losses, gradients and weights as on one, memory
 * that falls with the ranks, checkpoints that any mesh loads, and a rank that is killed in the middle.
 */
import assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../src/errors.ts";
import { RankGroup, RankLost } from "../../src/trainer/handle.ts";
import type { StoredRow } from "../../src/trainer/packing.ts";
import type { ModelSpec } from "../../src/trainer/protocol.ts";
import { trainUpdates } from "../../src/trainer/update.ts";
import { Tally } from "../tally.ts";
import { type Init, initOf, type Kind, ragged, readCheckpoint, rowsOf } from "./model.ts";

const steps = 3;
/** Of the largest value of each parameter. */
const tolerance = 1e-4;
const seconds = 120;
const settings = { maxTokensPerDevice: 48, schedule: () => 0.01 };

interface Mesh {
  ranks: number;
  contextSize: number;
  expertSize: number;
}

interface Result {
  /** Of each step. */
  metrics: Record<string, number>[];
  weights: Map<string, number[]>;
  gradients: Map<string, number[]>;
}

/** Prints each check; resolves with the exit code and the closing line. */
export async function runTier(pattern: RegExp): Promise<{ code: number; line: string }> {
  const home = mkdtempSync(join(tmpdir(), "molt-distributed-"));
  const tier = new Tier(home);
  const tally = new Tally();
  process.once("exit", () => rmSync(home, { recursive: true, force: true }));
  for (const [name, body] of tier.checks()) {
    if (pattern.test(name)) await tally.check(name, () => body().finally(() => tier.stop()));
  }
  return tally.end;
}

type Check = [name: string, body: () => Promise<string>];

class Tier {
  private readonly home: string;
  private readonly groups: RankGroup[] = [];
  private readonly alone = new Map<string, Promise<Result>>();
  private directories = 0;

  constructor(home: string) {
    this.home = home;
  }

  checks(): Check[] {
    const kinds: Kind[] = ["dense", "mixture"];
    return [
      ...kinds.flatMap((kind) => meshesOf(kind).map((mesh) => this.sameAsAlone(kind, mesh))),
      ...kinds.flatMap((kind) => meshesOf(kind, 4, true).map((mesh) => this.sameAsAlone(kind, mesh, [5]))),
      ...kinds.flatMap((kind) => this.waysToCompute(kind)),
      ...kinds.map((kind) => this.memoryFalls(kind)),
      ...kinds.map((kind) => this.loadsAnywhere(kind)),
      this.killedInTheMiddle(),
    ];
  }

  async stop(): Promise<void> {
    await Promise.all(this.groups.splice(0).map((group) => group.stop()));
  }

  private sameAsAlone(kind: Kind, mesh: Mesh, lengths: readonly number[] = ragged): Check {
    const rows = lengths.length === 1 ? "more ranks than rows" : "ragged rows";
    return [`${kind} on ${inWords(mesh)}, ${rows}: as on one`, () => this.compare(kind, mesh, lengths, {})];
  }

  private waysToCompute(kind: Kind): Check[] {
    const ways: Partial<ModelSpec>[] = [
      { deferReduce: true },
      { reshardAfterForward: false },
      { gradientCheckpoint: "selective" },
      { gradientCheckpoint: "none" },
    ];
    const mesh = { ranks: 2, contextSize: 1, expertSize: kind === "dense" ? 1 : 2 };
    return ways.map((way) => {
      const [[key, value]] = Object.entries(way) as [[string, unknown]];
      return [`${kind}, ${key} ${value}, on ${inWords(mesh)}: as without`, () => this.compare(kind, mesh, ragged, way)];
    });
  }

  private async compare(kind: Kind, mesh: Mesh, lengths: readonly number[], model: Partial<ModelSpec>) {
    const key = `${kind} ${lengths}`;
    const single = { ranks: 1, contextSize: 1, expertSize: 1 };
    if (!this.alone.has(key)) this.alone.set(key, this.train(kind, single, rowsOf(lengths), {}));
    const one = await this.alone.get(key)!;
    const many = await this.train(kind, mesh, rowsOf(lengths), model);
    for (const [step, metrics] of one.metrics.entries()) {
      for (const [name, value] of Object.entries(metrics)) {
        const found = many.metrics[step]![name]!;
        const isClose = Math.abs(found - value) <= tolerance * Math.max(1, Math.abs(value));
        assert.ok(isClose, `step ${step}: ${name} is ${found}, on one rank ${value}`);
      }
      assert.deepEqual(Object.keys(many.metrics[step]!).sort(), Object.keys(metrics).sort());
    }
    const gradients = worst(one.gradients, many.gradients, "the gradient of");
    const weights = worst(one.weights, many.weights, "");
    return `gradients within ${gradients.toExponential(1)}, weights ${weights.toExponential(1)}`;
  }

  /** Of the rows, three times. */
  private async train(kind: Kind, mesh: Mesh, rows: StoredRow[], model: Partial<ModelSpec>): Promise<Result> {
    const group = await this.start(mesh.ranks, initOf(kind, mesh.contextSize, mesh.expertSize, model));
    const metrics: Result["metrics"] = [];
    for (let step = 0; step < steps; step++) {
      const { metrics: found } = await trainUpdates(group, [rows], settings, step);
      // Of the first microbatch alone, which is another in another mesh.
      const { logprob_gap_live, ...same } = found;
      metrics.push(same);
    }
    const read = readCheckpoint(await this.save(group), mesh.ranks);
    await this.stop();
    return { metrics, ...read };
  }

  private memoryFalls(kind: Kind): Check {
    const body = async () => {
      const held: number[] = [];
      for (const ranks of [1, 2, 4]) {
        const group = await this.start(ranks, initOf(kind, 1, kind === "dense" ? 1 : ranks, {}, 8));
        await trainUpdates(group, [rowsOf(ragged)], settings, 0);
        const each = await group.all("memory", {});
        held.push(Math.max(...each.map(({ current }) => current)));
        await this.stop();
      }
      const parts = held.map((bytes) => bytes / held[0]!);
      const said = held.map((bytes, index) => `${2 ** index}: ${(bytes / 1e6).toFixed(1)} MB`).join(", ");
      for (const [index, part] of parts.entries()) {
        assert.ok(Math.abs(part * 2 ** index - 1) < 0.1, `weights, gradients and moments by ranks: ${said}`);
      }
      return `by ranks ${said}`;
    };
    return [`${kind}: weights, gradients and moments of a rank fall as 1/N`, body];
  }

  /** A step after loading is the step that would have followed. */
  private loadsAnywhere(kind: Kind): Check {
    const experts = kind === "dense" ? 1 : 2;
    const meshes = [
      { ranks: 1, contextSize: 1, expertSize: 1 },
      { ranks: 2, contextSize: 1, expertSize: experts },
      { ranks: 4, contextSize: 1, expertSize: 2 * experts > 2 ? 4 : 1 },
    ];
    const body = async () => {
      const rows = rowsOf(ragged);
      const writer = await this.start(4, initOf(kind, 2, experts));
      await trainUpdates(writer, [rows], settings, 0);
      const directory = await this.save(writer);
      const [sum] = await writer.all("checksum", {});
      await trainUpdates(writer, [rows], settings, 1);
      const next = readCheckpoint(await this.save(writer), 4);
      await this.stop();
      for (const { ranks, contextSize, expertSize } of meshes) {
        const reader = await this.start(ranks, initOf(kind, contextSize, expertSize, { seed: 8 }));
        const loaded = await reader.all("loadCheckpoint", { directory });
        assert.ok(loaded.every(({ stepCount }) => stepCount === 1));
        assert.deepEqual((await reader.all("checksum", {}))[0], sum);
        await trainUpdates(reader, [rows], settings, 1);
        worst(next.weights, readCheckpoint(await this.save(reader), ranks).weights, "");
        await this.stop();
      }
      return meshes.map(inWords).join("; ");
    };
    return [`${kind}: what 4 ranks in pairs wrote loads into other meshes, and goes on`, body];
  }

  private killedInTheMiddle(): Check {
    const body = async () => {
      const group = await this.start(4, initOf("mixture", 2, 4, {}, 8));
      const many = rowsOf(Array.from({ length: 200 }, () => 40));
      const failure = trainUpdates(group, [many], settings, 0).then(
        () => assert.fail("the step ended well"),
        (error: unknown) => error,
      );
      await new Promise((resolve) => setTimeout(resolve, 300));
      group.children[2]!.kill("SIGKILL");
      const error = await failure;
      assert.ok(error instanceof RankLost, messageOf(error));
      assert.match(messageOf(error), /^rank 2 was killed by SIGKILL/);
      await this.stop();
      const ends = group.children.map((child) => (child as unknown as { process: ChildProcess }).process);
      const said = ends.map(({ exitCode, signalCode }) => signalCode ?? `code ${exitCode}`);
      assert.deepEqual(said, ["code 0", "code 0", "SIGKILL", "code 0"]);
      return "the step says which, the others end with code 0";
    };
    return ["a rank killed in a collective", body];
  }

  private async start(count: number, init: Init): Promise<RankGroup> {
    const group = await RankGroup.start({ count, init, deadlines: { start: seconds, request: seconds } });
    this.groups.push(group);
    return group;
  }

  private async save(group: RankGroup): Promise<string> {
    const directory = join(this.home, String(this.directories++));
    mkdirSync(directory);
    await group.all("saveCheckpoint", { directory });
    await group.all("checkpointWritten", {});
    return directory;
  }
}

/** All of 1, 2 and 4 ranks, or of `only`; `spread`: rows are not shared. */
function meshesOf(kind: Kind, only?: number, spread = false): Mesh[] {
  return (only ? [only] : [2, 4]).flatMap((ranks) => {
    const sizes = [1, 2, 4].filter((size) => ranks % size === 0);
    const contexts = spread ? [1] : sizes;
    const experts = kind === "dense" ? [1] : sizes;
    return contexts.flatMap((contextSize) => experts.map((expertSize) => ({ ranks, contextSize, expertSize })));
  });
}

function inWords({ ranks, contextSize, expertSize }: Mesh): string {
  return `${ranks} (dp ${ranks / contextSize}, ep ${expertSize}, cp ${contextSize})`;
}

/** The largest difference, in parts of a parameter's largest value. */
function worst(expected: Map<string, number[]>, found: Map<string, number[]>, what: string): number {
  assert.deepEqual([...found.keys()].sort(), [...expected.keys()].sort());
  let most = 0;
  for (const [name, values] of expected) {
    const largest = values.reduce((max, value) => Math.max(max, Math.abs(value)), 1e-6);
    const apart = values.reduce((max, value, i) => Math.max(max, Math.abs(value - found.get(name)![i]!)), 0) / largest;
    assert.ok(apart <= tolerance, `${what} ${name} differs by ${apart} of its largest value`);
    most = Math.max(most, apart);
  }
  return most;
}
