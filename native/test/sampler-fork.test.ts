import { fileURLToPath } from "node:url";
import fc from "fast-check";
import { Sampler } from "molt-native";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { readModelFolder } from "../../runner/src/data/model-folder.ts";
import { step } from "./sampler-step.ts";

const folder = fileURLToPath(new URL("fixtures/sampler", import.meta.url));
const { decoder, tensors } = readModelFolder(folder, { weights: "required" });
const pageSize = 4;
const numPages = 24;

async function makeSampler(dtype: "float32" | "bfloat16" = "float32"): Promise<Sampler> {
  const { config, units } = decoder;
  const made = await Sampler.create({ config, units, pageSize, numPages, dtype });
  await made.load(tensors);
  return made;
}

let sampler: Sampler;
let fresh: Sampler;
beforeAll(async () => {
  [sampler, fresh] = [await makeSampler(), await makeSampler()];
});
afterAll(() => {
  sampler.dispose();
  fresh.dispose();
});

/** What a sequence without history says after `tokens`. */
async function alone(tokens: number[]) {
  const { tokens: next, logprobs } = await step(fresh, [{ sequence: 0, tokens, temperature: 0 }]);
  fresh.free(0);
  return { token: next[0]!, logprob: logprobs[0]! };
}

/** The sequences as they should be: their tokens, and pages by identity. */
class Ledger {
  readonly sequences = new Map<number, { tokens: number[]; pages: object[] }>();

  get free(): number {
    return numPages - new Set([...this.sequences.values()].flatMap(({ pages }) => pages)).size;
  }

  append(sequence: number, tokens: number[]): boolean {
    const known = this.sequences.get(sequence) ?? { tokens: [], pages: [] };
    const wanted = Math.ceil((known.tokens.length + tokens.length) / pageSize) - known.pages.length;
    if (wanted > this.free) return false;
    const pages = [...known.pages, ...Array.from({ length: wanted }, () => ({}))];
    this.sequences.set(sequence, { tokens: [...known.tokens, ...tokens], pages });
    return true;
  }

  fork(from: number, to: number, length: number): boolean {
    const { tokens, pages } = this.sequences.get(from)!;
    const begun = length % pageSize === 0 ? [] : [{}];
    if (begun.length > this.free) return false;
    const shared = pages.slice(0, Math.floor(length / pageSize));
    this.sequences.set(to, { tokens: tokens.slice(0, length), pages: [...shared, ...begun] });
    return true;
  }
}

type Action =
  | { kind: "append"; sequence: number; tokens: number[] }
  | { kind: "fork"; from: number; to: number; share: number }
  | { kind: "free"; sequence: number };

const name = fc.integer({ min: 0, max: 4 });
const action: fc.Arbitrary<Action> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant("append" as const),
      sequence: name,
      tokens: fc.array(fc.integer({ min: 0, max: 96 }), { minLength: 1, maxLength: 6 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("fork" as const),
      from: name,
      to: name,
      share: fc.double({ min: 0, max: 1, noNaN: true }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("free" as const), sequence: name }) },
);

async function perform(ledger: Ledger, done: Action): Promise<void> {
  if (done.kind === "free") {
    sampler.free(done.sequence);
    ledger.sequences.delete(done.sequence);
  } else if (done.kind === "fork") {
    const parent = ledger.sequences.get(done.from);
    if (!parent || ledger.sequences.has(done.to)) {
      expect(() => sampler.fork(done.from, done.to, 1)).toThrow(parent ? "is there already" : "has no 1 tokens");
      return;
    }
    const length = 1 + Math.floor(done.share * (parent.tokens.length - 1));
    if (ledger.fork(done.from, done.to, length)) sampler.fork(done.from, done.to, length);
    else expect(() => sampler.fork(done.from, done.to, length)).toThrow("out of pages");
  } else {
    const { sequence, tokens } = done;
    if (!ledger.append(sequence, tokens)) {
      await expect(step(sampler, [{ sequence, tokens }])).rejects.toThrow("out of pages");
      return;
    }
    const result = await step(sampler, [{ sequence, tokens, temperature: 0 }]);
    const wanted = await alone(ledger.sequences.get(sequence)!.tokens);
    expect(Math.abs(result.logprobs[0]! - wanted.logprob)).toBeLessThan(1e-4);
  }
}

describe("fork", () => {
  it("makes sequences that are as independent as sequences without a shared prefix, and leaks no page", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(action, { minLength: 5, maxLength: 40 }), async (actions) => {
        const ledger = new Ledger();
        try {
          for (const done of actions) {
            await perform(ledger, done);
            expect(sampler.freePages()).toBe(ledger.free);
          }
        } finally {
          for (const sequence of [0, 1, 2, 3, 4]) sampler.free(sequence);
        }
        expect(sampler.freePages()).toBe(numPages);
      }),
      { numRuns: 60 },
    );
  });

  it("shares a prompt among a group: each member goes on as if it had read it itself", async () => {
    const prompt = Array.from({ length: 10 }, (_, i) => (i * 37 + 5) % 97);
    await step(sampler, [{ sequence: 0, tokens: prompt }]);
    expect(sampler.freePages()).toBe(numPages - 3);
    for (const member of [1, 2, 3]) sampler.fork(0, member, prompt.length - 1);
    // Two whole pages are shared; each member has its own third.
    expect(sampler.freePages()).toBe(numPages - 6);
    sampler.free(0);
    const items = [1, 2, 3].map((sequence) => ({ sequence, tokens: [prompt.at(-1)!, sequence], temperature: 0 }));
    const { logprobs } = await step(sampler, items);
    for (const [i, { tokens }] of items.entries()) {
      const wanted = await alone([...prompt, tokens[1]!]);
      expect(Math.abs(logprobs[i]! - wanted.logprob)).toBeLessThan(1e-4);
    }
    for (const member of [1, 2, 3]) sampler.free(member);
    expect(sampler.freePages()).toBe(numPages);
  });

  it("refuses more tokens than are there, and lengths below one", async () => {
    await step(sampler, [{ sequence: 0, tokens: [1, 2, 3] }]);
    expect(() => sampler.fork(0, 1, 4)).toThrow("sequence 0 has no 4 tokens to fork");
    expect(() => sampler.fork(0, 1, 0)).toThrow("sequence 0 has no 0 tokens to fork");
    sampler.free(0);
  });
});
