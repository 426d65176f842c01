import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { epochOrder, type Prompt, PromptQueue } from "./order.ts";

const promptIds = ["a", "b", "c", "d", "e"];
const makeQueue = (epochs = 1, maxAttempts = 3) => new PromptQueue({ promptIds, seed: 7, epochs, maxAttempts });

function drain(queue: PromptQueue): Prompt[] {
  const out: Prompt[] = [];
  for (let prompt = queue.next(); prompt; prompt = queue.next()) out.push(prompt);
  return out;
}

describe("epochOrder", () => {
  test("is a permutation, the same for one seed and epoch, another for the next", () => {
    const order = epochOrder(1000, 3, 0);
    expect([...order].sort((a, b) => a - b)).toEqual(Array.from({ length: 1000 }, (_, i) => i));
    expect(epochOrder(1000, 3, 0)).toEqual(order);
    expect(epochOrder(1000, 3, 1)).not.toEqual(order);
    expect(epochOrder(1000, 4, 0)).not.toEqual(order);
  });

  test("every place of every item is about as frequent", () => {
    const counts = new Int32Array(16);
    for (let seed = 0; seed < 4000; seed++) {
      for (const [place, item] of epochOrder(4, seed, 0).entries()) counts[4 * place + item]!++;
    }
    // 4000 draws at 1/4: five standard deviations are 137.
    for (const count of counts) expect(Math.abs(count - 1000)).toBeLessThan(137);
  });
});

describe("epochOrder by weights", () => {
  const sources = fc.array(fc.record({ size: fc.nat(40), weight: fc.double({ min: 1e-3, max: 1e3, noNaN: true }) }), {
    minLength: 1,
    maxLength: 5,
  });

  test("is a permutation whatever the sizes and weights, the same for one seed and epoch", () => {
    fc.assert(
      fc.property(sources, fc.nat(), fc.nat(3), (files, seed, epoch) => {
        const mixture = { sizes: files.map(({ size }) => size), weights: files.map(({ weight }) => weight) };
        const length = mixture.sizes.reduce((sum, size) => sum + size, 0);
        const order = epochOrder(length, seed, epoch, mixture);
        expect([...order].sort((a, b) => a - b)).toEqual(Array.from({ length }, (_, i) => i));
        expect(epochOrder(length, seed, epoch, mixture)).toEqual(order);
      }),
    );
  });

  test("files come up by weight until one is used up, then the others go on", () => {
    // 3 of 4 draws are of the first file: its 3000 rows last for about 4000 places.
    const order = [...epochOrder(7000, 5, 0, { sizes: [3000, 4000], weights: [0.75, 0.25] })];
    const ofFirst = order.map((row) => (row < 3000 ? 1 : 0));
    const shareOf = (from: number, to: number) =>
      ofFirst.slice(from, to).reduce<number>((sum, one) => sum + one, 0) / (to - from);
    // Five standard deviations of 1000 draws at 3/4 are 0.068.
    for (const from of [0, 1000, 2000]) expect(Math.abs(shareOf(from, from + 1000) - 0.75)).toBeLessThan(0.068);
    const last = ofFirst.lastIndexOf(1);
    // Five standard deviations of the 3000th success are 183 places.
    expect(Math.abs(last - 4000)).toBeLessThan(183);
  });

  test("each file is shuffled by itself, anew each epoch", () => {
    const mixture = { sizes: [500, 500], weights: [1, 1] };
    const firstFile = (epoch: number) => [...epochOrder(1000, 5, epoch, mixture)].filter((row) => row < 500);
    const inOrder = Array.from({ length: 500 }, (_, i) => i);
    expect(firstFile(0)).not.toEqual(inOrder);
    expect(firstFile(0)).not.toEqual(firstFile(1));
    expect([...firstFile(0)].sort((a, b) => a - b)).toEqual(inOrder);
  });

  test("without weights all rows are shuffled together, as of one file", () => {
    expect(epochOrder(9, 5, 2, { sizes: [4, 5], weights: null })).toEqual(epochOrder(9, 5, 2));
  });
});

describe("PromptQueue", () => {
  test("hands prompts out in the order of their mixture, each once an epoch, over a resume too", () => {
    const mixture = { sizes: [2, 3], weights: [5, 1] };
    const create = () => new PromptQueue({ promptIds, seed: 7, epochs: 2, maxAttempts: 3, mixture });
    const order = [0, 1].flatMap((epoch) => [...epochOrder(5, 7, epoch, mixture)]);
    const queue = create();
    const first = Array.from({ length: 3 }, () => queue.next()!);
    for (const prompt of first) queue.consume(prompt);
    const resumed = create();
    resumed.restore(queue.serialize());
    expect([...first, ...drain(resumed)].map(({ index }) => index)).toEqual(order);
  });

  test("hands out each prompt once an epoch, in that epoch's order", () => {
    const queue = makeQueue(2);
    const out = drain(queue);
    const expected = [0, 1].flatMap((epoch) =>
      [...epochOrder(5, 7, epoch)].map((index) => ({ epoch, index, promptId: promptIds[index], attempt: 0 })),
    );
    expect(out).toEqual(expected);
    expect(queue.hasNext()).toBe(false);
  });

  test("a prompt given back comes again as the next attempt, until its attempts are used up", () => {
    const queue = makeQueue(1, 2);
    const first = queue.next()!;
    expect(queue.giveBack(first)).toBe(true);
    const again = queue.next()!;
    expect(again).toEqual({ ...first, attempt: 1 });
    expect(queue.giveBack(again)).toBe(false);
    expect(drain(queue).map((prompt) => prompt.index)).not.toContain(first.index);
  });

  test("a prompt is consumed once: a second time, or when it never was out, is a bug", () => {
    const queue = makeQueue();
    const prompt = queue.next()!;
    queue.consume(prompt);
    expect(() => queue.consume(prompt)).toThrow(`prompt ${prompt.promptId} of epoch 0 is not out`);
  });

  test("a finished group of the checkpoint claims its prompt, with its attempt", () => {
    const queue = makeQueue();
    const [one, two] = [queue.next()!, queue.next()!];
    const resumed = makeQueue();
    resumed.restore(queue.serialize());
    expect(resumed.claim(one)).toEqual(one);
    expect(resumed.next()).toEqual({ ...two, attempt: 1 });
    expect(drain(resumed)).toHaveLength(3);
    expect(() => resumed.claim(one)).toThrow("no place of prompt");
  });

  test("a group claims its own epoch's place of a prompt that waits in two", () => {
    const makeOne = () => new PromptQueue({ promptIds: ["a"], seed: 7, epochs: 2, maxAttempts: 3 });
    const queue = makeOne();
    const [first, second] = [queue.next()!, queue.next()!];
    expect([first.epoch, second.epoch]).toEqual([0, 1]);
    const resumed = makeOne();
    resumed.restore(queue.serialize());
    expect(resumed.claim(second)).toEqual(second);
    expect(() => resumed.claim(second)).toThrow("no place of prompt a waits to run again in epoch 1");
    expect(resumed.next()).toEqual({ ...first, attempt: 1 });
  });

  test("an epoch that is done before the one before it stays done after a resume", () => {
    const makeOne = () => new PromptQueue({ promptIds: ["a"], seed: 7, epochs: 2, maxAttempts: 3 });
    const queue = makeOne();
    const [first, second] = [queue.next()!, queue.next()!];
    queue.consume(second);
    const resumed = makeOne();
    resumed.restore(queue.serialize());
    expect(resumed.next()).toEqual({ ...first, attempt: 1 });
    expect(resumed.next()).toBe(null);
  });

  test("a checkpoint of other data is refused", () => {
    const other = new PromptQueue({ promptIds: ["a"], seed: 7, epochs: 1, maxAttempts: 1 });
    expect(() => makeQueue().restore(other.serialize())).toThrow("orders 1 prompts by seed 7, this run 5");
  });

  // Invariant 6, case F1.
  test.each([false, true])(
    "killed at any moment and resumed, every prompt is consumed exactly once an epoch (by solve rate: %s)",
    (bySolveRate) => {
      const actions = fc.array(fc.tuple(fc.constantFrom("next", "consume", "drop", "save", "kill"), fc.nat()), {
        maxLength: 150,
      });
      fc.assert(
        fc.property(
          fc.integer({ min: 1, max: 9 }),
          fc.integer({ min: 1, max: 3 }),
          actions,
          (length, epochs, script) => {
            const options = {
              promptIds: promptIds.concat(["f", "g", "h", "i"]).slice(0, length),
              seed: length,
              epochs,
            };
            const create = () => new PromptQueue({ ...options, maxAttempts: 2, bySolveRate });
            let queue = create();
            let out: Prompt[] = [];
            let consumed: string[] = [];
            let saved = { state: queue.serialize(), consumed: [] as string[] };
            const nameOf = ({ epoch, promptId }: Prompt) => `${epoch}/${promptId}`;
            const handOut = () => {
              const prompt = queue.next();
              if (!prompt) return;
              expect(out.map(nameOf)).not.toContain(nameOf(prompt));
              expect(consumed).not.toContain(nameOf(prompt));
              out.push(prompt);
            };
            const finish = (number: number, drop: boolean) => {
              const [prompt] = out.splice(number % out.length, 1) as [Prompt];
              if (drop && queue.giveBack(prompt)) return;
              if (!drop) queue.consume(prompt, (number % 5) / 4);
              consumed.push(nameOf(prompt));
            };
            for (const [action, number] of script) {
              if (action === "next") handOut();
              else if (action === "save")
                saved = { state: structuredClone(queue.serialize()), consumed: [...consumed] };
              else if (action === "kill") {
                queue = create();
                queue.restore(saved.state);
                [out, consumed] = [[], [...saved.consumed]];
              } else if (out.length > 0) finish(number, action === "drop");
            }
            while (queue.hasNext() || out.length > 0) {
              handOut();
              finish(0, false);
            }
            const all = Array.from({ length: epochs }, (_, epoch) =>
              options.promptIds.map((id) => `${epoch}/${id}`),
            ).flat();
            expect(consumed.sort()).toEqual(all.sort());
          },
        ),
        { numRuns: 300 },
      );
    },
  );
});

describe("by solve rate", () => {
  const ids = Array.from({ length: 40 }, (_, index) => `p${index}`);
  const make = (seed = 3, epochs = 2) =>
    new PromptQueue({ promptIds: ids, seed, epochs, maxAttempts: 2, bySolveRate: true });
  /** A tenth of the prompts each: 0, 0.1 … 0.9 solved. */
  const rateOf = (index: number) => Math.floor(index / 4) / 10;
  const pass = (queue: PromptQueue, count: number, rate: (index: number) => number | undefined = rateOf) =>
    Array.from({ length: count }, () => {
      const prompt = queue.next()!;
      queue.consume(prompt, rate(prompt.index));
      return prompt.index;
    });

  test("prompts solved at times come first in the next epoch, by the weights p (1 - p)", () => {
    const seeds = 400;
    const first = new Float64Array(10);
    for (let seed = 0; seed < seeds; seed++) {
      const queue = make(seed);
      expect(pass(queue, 40).sort((a, b) => a - b)).toEqual(ids.map((_, index) => index));
      first[rateOf(queue.next()!.index) * 10]!++;
    }
    // By hand: 4 x (0.001 + p (1 - p)) of their sum, 4 x (0.01 + 1.65), for p = 0, 0.1 … 0.9.
    const shares = [0, 0.09, 0.16, 0.21, 0.24, 0.25, 0.24, 0.21, 0.16, 0.09].map((weight) => (weight + 0.001) / 1.66);
    for (const [tenth, share] of shares.entries()) {
      // Five standard deviations of a share of 400 draws.
      expect(Math.abs(first[tenth]! / seeds - share)).toBeLessThan(5 * Math.sqrt((share * (1 - share)) / seeds));
    }
  });

  test("never and always solved ones come last, each still once", () => {
    const queue = make();
    const rate = (index: number) => (index < 10 ? 0.5 : index < 25 ? 0 : 1);
    pass(queue, 40, rate);
    const second = pass(queue, 40, rate);
    expect([...second].sort((a, b) => a - b)).toEqual(ids.map((_, index) => index));
    const places = second.map((index, place) => (index < 10 ? place : -1)).filter((place) => place >= 0);
    // Of 25 and more weights, those of the ten are 250 times the others'.
    expect(places.reduce((sum, place) => sum + place) / 10).toBeLessThan(8);
    expect(queue.next()).toBeNull();
  });

  test("one that nobody saw counts as any rate alike: before the never solved, after those at a half", () => {
    const counts = { half: 0, unseen: 0, never: 0 };
    for (let seed = 0; seed < 300; seed++) {
      const queue = make(seed);
      // Dropped prompts have no rate.
      pass(queue, 40, (index) => (index < 10 ? 0.5 : index < 25 ? undefined : 0));
      const { index } = queue.next()!;
      counts[index < 10 ? "half" : index < 25 ? "unseen" : "never"]++;
    }
    // Weights 2.51, 15 x (1/6 + 0.001) = 2.515, 0.015: about as many of each, and of the last one in 336.
    expect(Math.abs(counts.half - counts.unseen)).toBeLessThan(5 * Math.sqrt(300));
    expect(counts.never).toBeLessThan(10);
  });

  test("goes on from a checkpoint as it would have, from its rates and in its order", () => {
    const queue = make();
    pass(queue, 47);
    const out = queue.next()!;
    const state = structuredClone(queue.serialize());
    const rest = pass(queue, 32);
    const resumed = make();
    resumed.restore(state);
    expect(resumed.next()).toEqual({ ...out, attempt: 1 });
    expect(pass(resumed, 32)).toEqual(rest);
    // Without rates the order is another one.
    const plain = new PromptQueue({ promptIds: ids, seed: 3, epochs: 2, maxAttempts: 2 });
    expect(pass(plain, 80).slice(48)).not.toEqual(rest);
  });

  test("switched off or on in the midst of an epoch, each prompt still comes once", () => {
    for (const [before, after] of [
      [true, false],
      [false, true],
    ] as const) {
      const options = { promptIds: ids, seed: 3, epochs: 2, maxAttempts: 2 };
      const queue = new PromptQueue({ ...options, bySolveRate: before });
      const first = pass(queue, 57);
      const resumed = new PromptQueue({ ...options, bySolveRate: after });
      resumed.restore(queue.serialize());
      const all = [...first, ...drain(resumed).map(({ index }) => index)];
      expect(all.slice(40).sort((a, b) => a - b)).toEqual(ids.map((_, index) => index));
    }
  });
});
