import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { Model, memory, scope, Tensor } from "molt-native";
import { describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";

const tensor = (values: number[]) => Tensor.from(Float32Array.from(values));
const values = async (of: Tensor) => Array.from(await of.data());

/** Float32 results next to float64 ones computed in JavaScript, relative to their size. */
function expectClose(actual: number[], expected: number[], tolerance = 2e-6): void {
  expect(actual.length).toBe(expected.length);
  for (const [i, want] of expected.entries()) {
    if (Number.isNaN(want)) expect(actual[i]).toBeNaN();
    else expect(Math.abs(actual[i]! - want)).toBeLessThanOrEqual(tolerance * Math.max(1, Math.abs(want)));
  }
}

const number = fc.float({ min: -8, max: 8, noNaN: true });
const pairs = fc.array(fc.tuple(number, number), { minLength: 1, maxLength: 40 });

describe("Tensor", () => {
  it("has the shape it was given and copies the data", async () => {
    const data = Float32Array.of(1, 2, 3, 4, 5, 6);
    const matrix = Tensor.from(data, [2, 3]);
    data[0] = 9;
    expect(matrix.shape).toEqual([2, 3]);
    expect(tensor([1, 2]).shape).toEqual([2]);
    expect(matrix.sum().shape).toEqual([]);
    expect(await values(matrix)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(matrix.requiresGrad).toBe(false);
  });

  it("computes what float64 computes, element by element", async () => {
    const binary: [string, (a: Tensor, b: Tensor) => Tensor, (a: number, b: number) => number][] = [
      ["add", (a, b) => a.add(b), (a, b) => a + b],
      ["sub", (a, b) => a.sub(b), (a, b) => a - b],
      ["mul", (a, b) => a.mul(b), (a, b) => a * b],
      ["div", (a, b) => a.div(b.mul(b).add(1)), (a, b) => a / (b * b + 1)],
      ["neg", (a) => a.neg(), (a) => -a],
      ["exp", (a) => a.exp(), (a) => Math.exp(a)],
      ["log", (a) => a.mul(a).add(0.5).log(), (a) => Math.log(a * a + 0.5)],
      ["clamp", (a) => a.clamp(-1, 2), (a) => Math.min(Math.max(a, -1), 2)],
      ["clamp below", (a) => a.clamp(0.5, null), (a) => Math.max(a, 0.5)],
      ["clamp above", (a) => a.clamp(null, 0.5), (a) => Math.min(a, 0.5)],
      ["minimum", (a, b) => a.minimum(b), (a, b) => Math.min(a, b)],
      ["maximum", (a, b) => a.maximum(b), (a, b) => Math.max(a, b)],
      ["lt", (a, b) => a.lt(b), (a, b) => Number(a < b)],
      ["gt", (a) => a.gt(1), (a) => Number(a > 1)],
      ["where", (a, b) => a.where(a.gt(b), b.mul(2)), (a, b) => (a > b ? a : 2 * b)],
      ["where, number", (a, b) => a.where(b.lt(0), 7), (a, b) => (b < 0 ? a : 7)],
      ["detach", (a) => a.detach(), (a) => a],
    ];
    await fc.assert(
      fc.asyncProperty(pairs, async (rows) => {
        const [a, b] = [tensor(rows.map(([x]) => x)), tensor(rows.map(([, y]) => y))];
        for (const [, ours, exact] of binary)
          expectClose(
            await values(ours(a, b)),
            rows.map(([x, y]) => exact(x, y)),
          );
        expectClose(await values(a.sum()), [rows.reduce((sum, [x]) => sum + x, 0)], 2e-5);
      }),
      { numRuns: 30 },
    );
  });

  it("says what is wrong with its arguments", () => {
    const three = tensor([1, 2, 3]);
    expect(() => three.add(tensor([1, 2]))).toThrow(/size of tensor a \(3\).*size of tensor b \(2\)/);
    expect(() => three.add({} as never)).toThrow(/Tensor was expected/);
    expect(() => Tensor.from([1] as never)).toThrow(/Float32Array/);
    expect(() => Tensor.from(Float32Array.of(1, 2), [3])).toThrow(/shape '\[3\]' is invalid/);
    expect(() => new (Tensor as unknown as new () => Tensor)()).toThrow(/Tensor.from/);
  });
});

describe("gradients of Tensor operations", () => {
  /** Weights whose gradients are compared: the head's norm and one matrix. */
  const kind = "tied";
  const folder = fileURLToPath(new URL(`fixtures/model/${kind}`, import.meta.url));
  const { tokens, cu } = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8")) as Record<string, number[]>;
  const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
  const names = decoder.units.flatMap((unit) => unit.parameters.map(({ name }) => name));
  const targets = tokens!.map((_, t) => (cu!.includes(t + 1) ? -1 : tokens![t + 1]!));
  const rows = {
    tokens: Int32Array.from(tokens!),
    cu: Int32Array.from(cu!),
    targets: Int32Array.from(targets),
    temperatures: new Float32Array(targets.length).fill(1),
  };

  async function gradients(loss: (logp: Tensor, at: number[]) => Tensor): Promise<number[]> {
    const model = await Model.create({ config: decoder.config, units: decoder.units, group: null, trainable: true });
    await model.load(tensors);
    const { logp } = await model.forward(rows, true);
    const at = await values(logp);
    await model.backward(loss(logp, at));
    const read = await Promise.all(names.map(async (name) => Array.from(await model.readGradient(name))));
    model.dispose();
    return read.flat();
  }

  // The gradient through f is that of the linear loss whose coefficients are f' at the same point, worked out by hand.
  const half = (at: number[]) => tensor(at.map((x, t) => x + (t % 2 === 0 ? 0.25 : -0.25)));
  const cases: [string, (x: Tensor, at: number[]) => Tensor, (x: number, t: number) => number][] = [
    ["exp, neg, mul", (x) => x.exp().neg().mul(3), (x) => -3 * Math.exp(x)],
    ["log, add, div", (x) => x.neg().add(1).log().div(2), (x) => -1 / (2 * (1 - x))],
    ["div by a tensor", (x) => tensor([1]).div(x.sub(2)), (x) => -1 / (x - 2) ** 2],
    ["clamp", (x) => x.clamp(-3, -1).mul(x.detach()), (x) => (x > -3 && x < -1 ? x : 0)],
    ["minimum", (x, at) => x.mul(2).minimum(half(at).mul(2)), (_, t) => (t % 2 === 0 ? 2 : 0)],
    ["maximum", (x, at) => x.mul(2).maximum(half(at).mul(2)), (_, t) => (t % 2 === 0 ? 0 : 2)],
    ["where", (x, at) => x.exp().where(x.lt(half(at)), x.mul(5)), (x, t) => (t % 2 === 0 ? Math.exp(x) : 5)],
    ["where a number", (x, at) => x.mul(4).where(x.gt(half(at)), 1), (_, t) => (t % 2 === 0 ? 0 : 4)],
    ["detach", (x) => x.mul(x.detach()), (x) => x],
  ];

  it.each(cases)("%s", async (_, f, derivative) => {
    const actual = await gradients((x, at) => f(x, at).sum());
    const expected = await gradients((x, at) => x.mul(tensor(at.map(derivative))).sum());
    const largest = Math.max(...expected.map(Math.abs));
    expect(largest).toBeGreaterThan(0);
    const apart = Math.max(...expected.map((want, i) => Math.abs(actual[i]! - want)));
    expect(apart).toBeLessThanOrEqual(2e-6 * Math.max(1, largest));
  });

  it("stops at detach", async () => {
    const model = await Model.create({ config: decoder.config, units: decoder.units, group: null, trainable: true });
    await model.load(tensors);
    const { logp } = await model.forward(rows, true);
    expect(logp.requiresGrad).toBe(true);
    expect(logp.exp().requiresGrad).toBe(true);
    expect(logp.detach().requiresGrad).toBe(false);
    expect((await model.forward(rows, false)).logp.requiresGrad).toBe(false);
  });
});

describe("scope", () => {
  it("frees what it does not return", async () => {
    const before = memory().current;
    const kept = scope(() => {
      const big = Tensor.from(new Float32Array(1_000_000));
      expect(memory().current - before).toBeGreaterThanOrEqual(4_000_000);
      return { loss: big.add(1).sum(), metrics: [big.sum()] };
    });
    expect(memory().current - before).toBeLessThan(10_000);
    expect(await values(kept.loss)).toEqual([1_000_000]);
    expect(await values(kept.metrics[0]!)).toEqual([0]);
  });

  it("hands what an inner scope returns to the outer one", () => {
    let inner: Tensor | undefined;
    scope(() => {
      inner = scope(() => tensor([1, 2]).mul(2));
      expect(inner.shape).toEqual([2]);
    });
    expect(() => inner!.shape).toThrow(/disposed/);
  });

  it("frees everything when its body throws, and refuses an asynchronous body", () => {
    let made: Tensor | undefined;
    const failing = () =>
      scope(() => {
        made = tensor([1]);
        throw new Error("from the body");
      });
    expect(failing).toThrow("from the body");
    expect(() => made!.sum()).toThrow(/disposed/);
    expect(() => scope(async () => tensor([1]))).toThrow(/asynchronous/);
  });

  it("leaves tensors of before alone, and dispose may be called twice", async () => {
    const before = tensor([3]);
    scope(() => before.add(1));
    expect(await values(before)).toEqual([3]);
    before.dispose();
    before.dispose();
    expect(() => before.data()).toThrow(/disposed/);
  });
});

describe("memory", () => {
  it("counts what is held and the most that was held", () => {
    const start = memory(true).current;
    const big = Tensor.from(new Float32Array(500_000));
    expect(memory().current - start).toBeGreaterThanOrEqual(2_000_000);
    big.dispose();
    expect(memory().current).toBeLessThan(start + 10_000);
    expect(memory(true).peak - start).toBeGreaterThanOrEqual(2_000_000);
    expect(memory().peak).toBeLessThan(start + 10_000);
  });

  it("keeps freed blocks for the next of their size, and no more than was held at once", () => {
    const values = new Float32Array(14_000_000).fill(1);
    const resident = process.memoryUsage.rss();
    // 4 to 56 MB, one at a time: 420 MB if none were given back.
    for (let i = 0; i < 28; i++) Tensor.from(values.subarray(0, (1 + (i % 14)) * 1_000_000)).dispose();
    expect(process.memoryUsage.rss() - resident).toBeLessThan(210e6);
    expect(memory(true).peak - memory().current).toBeGreaterThanOrEqual(56e6);
  });
});
