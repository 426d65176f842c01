import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { epochOrder, makeRandomInteger, type Prompt, PromptQueue } from "./order.ts";

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

  test("integers stay below a bound that does not divide 2^32", () => {
    const randomInteger = makeRandomInteger(2 ** 40 + 1, 0);
    const drawn = Array.from({ length: 2000 }, () => randomInteger(3));
    expect(new Set(drawn)).toEqual(new Set([0, 1, 2]));
  });
});

describe("PromptQueue", () => {
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
  test("killed at any moment and resumed, every prompt is consumed exactly once an epoch", () => {
    const actions = fc.array(fc.tuple(fc.constantFrom("next", "consume", "drop", "save", "kill"), fc.nat()), {
      maxLength: 150,
    });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 1, max: 3 }), actions, (length, epochs, script) => {
        const options = { promptIds: promptIds.concat(["f", "g", "h", "i"]).slice(0, length), seed: length, epochs };
        const create = () => new PromptQueue({ ...options, maxAttempts: 2 });
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
        const finish = (at: number, drop: boolean) => {
          const [prompt] = out.splice(at % out.length, 1) as [Prompt];
          if (drop && queue.giveBack(prompt)) return;
          if (!drop) queue.consume(prompt);
          consumed.push(nameOf(prompt));
        };
        for (const [action, number] of script) {
          if (action === "next") handOut();
          else if (action === "save") saved = { state: structuredClone(queue.serialize()), consumed: [...consumed] };
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
      }),
      { numRuns: 300 },
    );
  });
});
