import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import {
  AdamW,
  Model,
  type ModelOptions,
  type PackedRows,
  setThreads,
  Tensor,
  type UnitDescription,
} from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { parametersOf } from "../../runner/src/data/decoder.ts";
import { exportHeader, readModelFolder } from "../../runner/src/data/model-folder.ts";
import { deadlineMs } from "../../runner/src/deadline.ts";
import { pythonPath } from "../setup/locate.mjs";
import { largestDifference, readTensors } from "./tensors.ts";

interface Scores {
  logp: number[];
  entropy: number[];
}

/** What transformers says: see `mixtures.py`. The loss is the sum of a · logp + b · entropy, and the balance loss. */
interface Expected {
  tokens: number[];
  cu: number[];
  targets: number[];
  a: number[];
  b: number[];
  /** Its routers' choices, and those to be taken instead. */
  routes: number[];
  recorded: number[];
  weights: number[];
  balance: number;
  differing: number;
  compared: number;
  live: Scores;
  replayed: Scores;
}

const mixtures = ["qwen3", "qwen3-normed-dense-first-tied", "qwen3-every-second-tied", "mixtral-window"];
const folder = mkdtempSync(join(tmpdir(), "molt-mixtures-"));

beforeAll(async () => {
  await setThreads(1);
  const script = fileURLToPath(new URL("mixtures.py", import.meta.url));
  execFileSync(pythonPath(), [script, folder], { timeout: deadlineMs(150), stdio: ["ignore", "ignore", "pipe"] });
}, deadlineMs(160));
afterAll(() => rmSync(folder, { recursive: true }));

type Tensors = Map<string, Float32Array>;

async function open(
  name: string,
  options: Partial<ModelOptions> = {},
  adapt = (units: UnitDescription[]): UnitDescription[] => units,
) {
  const { decoder, tensors } = readModelFolder(join(folder, name), { weights: "required" });
  const expected: Expected = JSON.parse(readFileSync(join(folder, name, "expected.json"), "utf8"));
  const units = adapt(decoder.units);
  const { config } = decoder;
  const model = await Model.create({ config, units, group: null, trainable: true, headChunk: 7, ...options });
  await model.load(tensors);
  return { model, units, expected };
}

type Opened = Awaited<ReturnType<typeof open>>;

/** With the transformers' own rows, and a gradient. */
async function run({ model, units, expected }: Opened, changes: Partial<PackedRows> = {}) {
  const { tokens, cu, targets } = expected;
  const rows = {
    tokens: Int32Array.from(tokens),
    cu: Int32Array.from(cu),
    targets: Int32Array.from(targets),
    temperatures: new Float32Array(tokens.length).fill(1),
    ...changes,
  };
  const { logp, entropy, balance, routeMismatch } = await model.forward(rows, true);
  const [a, b] = [expected.a, expected.b].map((weights) => Tensor.from(Float32Array.from(weights)));
  await model.zeroGradients();
  await model.backward(a!.mul(logp).add(b!.mul(entropy)).sum());
  const gradients: Tensors = new Map();
  const trained = units.some(({ adapters }) => adapters)
    ? units.flatMap(({ adapters }) => adapters?.parameters ?? [])
    : parametersOf(units);
  for (const { name } of trained) {
    const gradient = await model.readGradient(name).catch(() => null);
    if (gradient) gradients.set(name, gradient);
  }
  return { logp: await logp.data(), entropy: await entropy.data(), balance, routeMismatch, gradients };
}

function expectGradients(gradients: Tensors, file: string): void {
  const truth = readTensors(file);
  expect([...gradients.keys()].sort()).toEqual([...truth.keys()].sort());
  for (const [parameter, want] of truth) {
    const scale = Math.max(...want.map(Math.abs));
    // A gradient of nothing would prove nothing, but that no token chose the expert.
    if (!parameter.includes("experts")) expect(scale, parameter).toBeGreaterThan(1e-4);
    expect(largestDifference(gradients.get(parameter)!, want), parameter).toBeLessThanOrEqual(5e-5 * scale);
  }
}

describe.each(mixtures)("%s", (name) => {
  it.each(["full", "none"] as const)("scores and has the gradients of float64 (checkpointing: %s)", async (how) => {
    const opened = await open(name, { gradientCheckpoint: how });
    const { logp, entropy, balance, routeMismatch, gradients } = await run(opened);
    expect(largestDifference(logp, opened.expected.live.logp)).toBeLessThan(2e-5);
    expect(largestDifference(entropy, opened.expected.live.entropy)).toBeLessThan(2e-5);
    expect([balance, routeMismatch]).toEqual([0, { differing: 0, compared: 0 }]);
    expectGradients(gradients, join(folder, name, "live", "model.safetensors"));
    opened.model.dispose();
  });

  it.each(["full", "none"] as const)("replays routes, with a balance loss (checkpointing: %s)", async (how) => {
    const opened = await open(name, { gradientCheckpoint: how });
    const { expected } = opened;
    const { logp, entropy, balance, routeMismatch, gradients } = await run(opened, {
      routes: Int16Array.from(expected.recorded),
      balance: Float32Array.from(expected.weights),
    });
    expect(largestDifference(logp, expected.replayed.logp)).toBeLessThan(2e-5);
    expect(largestDifference(entropy, expected.replayed.entropy)).toBeLessThan(2e-5);
    expect(balance / expected.balance).toBeCloseTo(1, 6);
    expect(routeMismatch).toEqual({ differing: expected.differing, compared: expected.compared });
    expect(expected.differing).toBeGreaterThan(20);
    expectGradients(gradients, join(folder, name, "replayed", "model.safetensors"));
    opened.model.dispose();
  });

  it("changes no bit where its own routes are replayed", async () => {
    const opened = await open(name);
    const routes = Int16Array.from(opened.expected.routes);
    const { routeMismatch: none, ...live } = await run(opened);
    const { routeMismatch, ...replayed } = await run(opened, { routes });
    expect(replayed).toEqual(live);
    expect(routeMismatch).toEqual({ differing: 0, compared: routes.length });
    expect(none.compared).toBe(0);
    opened.model.dispose();
  });

  it("saves every tensor bit for bit", async () => {
    const { model, units } = await open(name);
    const file = join(folder, name, "saved.safetensors");
    await model.save(file, exportHeader(units));
    expect(readTensors(file)).toEqual(readTensors(join(folder, name, "model.safetensors")));
    model.dispose();
  });

  it("leaves a frozen router as it is, and all else the same gradient", async () => {
    const [frozen, free] = [await open(name, { freezeRouter: true }), await open(name)];
    const [{ gradients, logp }, whole] = [await run(frozen), await run(free)];
    expect(logp).toEqual(whole.logp);
    const isRouter = (parameter: string) => /(mlp|block_sparse_moe)\.gate\.weight$/.test(parameter);
    const others = [...whole.gradients].filter(([parameter]) => !isRouter(parameter));
    expect([...gradients]).toEqual(others);
    const routers = [...whole.gradients.keys()].filter(isRouter);
    const before = await Promise.all(routers.map((router) => frozen.model.read(router)));
    const [parameter] = others.at(-3)!;
    const trained = await frozen.model.read(parameter);
    await new AdamW(frozen.model, { beta1: 0.9, beta2: 0.9, eps: 1e-8, weightDecay: 0.1 }).step(0.1, 1);
    expect(await Promise.all(routers.map((router) => frozen.model.read(router)))).toEqual(before);
    expect(await frozen.model.read(parameter)).not.toEqual(trained);
    for (const { model } of [frozen, free]) model.dispose();
  });

  it("trains adapters of its attention", async () => {
    const q = (unit: UnitDescription) => unit.parameters.find(({ role }) => role === "q")!;
    const opened = await open(name, {}, (units) =>
      units.map((unit) => {
        const factor = (role: string, shape: number[], std: number) => ({
          ...{ role, name: `${role} of ${q(unit).name}`, shape, decay: true },
          init: { kind: "normal" as const, std },
        });
        const factors = () => [
          factor("q_lora_A", [3, q(unit).shape[1]!], 1),
          factor("q_lora_B", [q(unit).shape[0]!, 3], 0),
        ];
        return { ...unit, adapters: { scale: 2, parameters: unit.kind === "layer" ? factors() : [] } };
      }),
    );
    await opened.model.initialize(1, "adapters");
    const { logp, gradients } = await run(opened);
    expect(largestDifference(logp, opened.expected.live.logp)).toBeLessThan(2e-5);
    const truth = readTensors(join(folder, name, "live", "model.safetensors"));
    for (const unit of opened.units.filter(({ kind }) => kind === "layer")) {
      const { name: weight, shape } = q(unit);
      const [outputs, inputs] = shape as [number, number];
      const [d, A] = [truth.get(weight)!, await opened.model.read(`q_lora_A of ${weight}`)];
      // d loss / dB = scale · dW · Aᵀ; B is 0, so A's is too.
      const want = Array.from({ length: outputs * 3 }, (_, i) => {
        const [row, rank] = [Math.floor(i / 3), i % 3];
        return (
          2 *
          Array.from({ length: inputs }, (_, k) => d[row * inputs + k]! * A[rank * inputs + k]!).reduce((x, y) => x + y)
        );
      });
      const scale = Math.max(...want.map(Math.abs));
      expect(largestDifference(gradients.get(`q_lora_B of ${weight}`)!, want) / scale).toBeLessThan(5e-5);
      expect(Math.max(...gradients.get(`q_lora_A of ${weight}`)!.map(Math.abs))).toBe(0);
    }
    opened.model.dispose();
  });

  it("is near to float64 in bf16, where it takes the same routes", async () => {
    const opened = await open(name, { dtype: "bfloat16" });
    const { logp } = await run(opened, { routes: Int16Array.from(opened.expected.routes) });
    expect(largestDifference(logp, opened.expected.live.logp)).toBeLessThan(0.25);
    expect(largestDifference(logp, opened.expected.live.logp)).toBeGreaterThan(1e-4);
    opened.model.dispose();
  });
});

describe("packed rows of a mixture", () => {
  const rows = (changes: Partial<PackedRows>): PackedRows => ({
    tokens: Int32Array.of(1, 2),
    cu: Int32Array.of(0, 2),
    targets: Int32Array.of(2, -1),
    temperatures: Float32Array.of(1, 1),
    ...changes,
  });

  it.each([
    [
      { routes: Int16Array.of(0, 1, 2) },
      "each of 2 tokens has 6 choices of experts in all layers together, not 3 in all",
    ],
    [{ routes: Int16Array.of(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6) }, "the route of position 1 leads to expert 6 of 6"],
    [{ balance: Float32Array.of(1, 1) }, "packed rows have 1 rows, but 2 weights of the balance loss"],
  ])("are refused with %o", async (changes, message) => {
    const { model } = await open("qwen3");
    await expect(model.forward(rows(changes), false)).rejects.toThrow(message);
    model.dispose();
  });
});
