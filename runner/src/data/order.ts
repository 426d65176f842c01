import { usageError } from "../errors.ts";

/** The seeded order of prompts and which are done, so that a resume consumes each once an epoch. */

/** `index` is its row, `attempt` counts from 0. */
export interface Prompt {
  epoch: number;
  index: number;
  promptId: string;
  attempt: number;
}

export interface PromptQueueOptions {
  promptIds: string[];
  seed: number;
  /** Infinity: as many as are asked for. */
  epochs: number;
  /** Once given back this often, a prompt is done. */
  maxAttempts: number;
  /** What was out at a checkpoint runs again as itself, and so says the same. */
  deterministic?: boolean;
  mixture?: Mixture;
  /** An epoch's prompts come by how often they were solved, those that sometimes are first. */
  bySolveRate?: boolean;
}

export interface Mixture {
  sizes: number[];
  /** How often each file is drawn, relatively; null shuffles all together. */
  weights: number[] | null;
}

/**
 * For a checkpoint. Prompts by their place in the order, counted over all epochs: those before `begun` are consumed but
 * for `attempts`.
 */
export interface PromptQueueState {
  length: number;
  seed: number;
  begun: number;
  attempts: [place: number, next: number][];
  /** Where prompts come by solve rate: the orders of epochs that are not consumed, and each prompt's last rate. */
  orders?: [epoch: number, order: Int32Array][];
  solveRates?: Float32Array;
}

/** Uniform: xoshiro128** (Blackman and Vigna, 2018) seeded through splitmix32, with rejection against bias. */
function makeRandomInteger(seed: number, stream: number): (bound: number) => number {
  let mixed = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(Math.floor(seed / 2 ** 32) + 1, 0x85ebca6b) ^ stream) >>> 0;
  const seeded = () => {
    mixed = (mixed + 0x9e3779b9) >>> 0;
    let z = Math.imul(mixed ^ (mixed >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return z ^ (z >>> 15);
  };
  let [s0, s1, s2, s3] = [seeded(), seeded(), seeded(), seeded()];
  const rotate = (x: number, by: number) => (x << by) | (x >>> (32 - by));
  return (bound) => {
    for (;;) {
      const value = Math.imul(rotate(Math.imul(s1, 5), 7), 9) >>> 0;
      const shifted = s1 << 9;
      s2 ^= s0;
      s3 ^= s1;
      s1 ^= s2;
      s0 ^= s3;
      s2 ^= shifted;
      s3 = rotate(s3, 11);
      if (value < 2 ** 32 - (2 ** 32 % bound)) return value % bound;
    }
  };
}

/**
 * A permutation of `0..length`. With weights every file is shuffled by itself, and each place takes the next prompt of
 * a file drawn by weight among those with some left.
 */
export function epochOrder(length: number, seed: number, epoch: number, mixture?: Mixture): Int32Array {
  const randomInteger = makeRandomInteger(seed, epoch);
  const { sizes, weights } = mixture?.weights ? mixture : { sizes: [length], weights: [1] };
  let first = 0;
  const files = sizes.map((size, file) => {
    const rest = shuffle(first, size, randomInteger);
    first += size;
    return { rest, weight: weights![file]! };
  });
  return files.length === 1 ? files[0]!.rest : interleave(files, length, () => randomInteger(2 ** 32) / 2 ** 32);
}

/** `first..first + length` by Fisher and Yates. */
function shuffle(first: number, length: number, randomInteger: (bound: number) => number): Int32Array {
  const order = Int32Array.from({ length }, (_, i) => first + i);
  for (let i = length - 1; i > 0; i--) {
    const j = randomInteger(i + 1);
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

function interleave(files: { rest: Int32Array; weight: number }[], length: number, draw: () => number): Int32Array {
  return Int32Array.from({ length }, () => {
    const open = files.filter(({ rest }) => rest.length > 0);
    let left = draw() * open.reduce((sum, { weight }) => sum + weight, 0);
    let drawn = 0;
    // Rounding may leave a crumb.
    while (left >= open[drawn]!.weight && drawn < open.length - 1) left -= open[drawn++]!.weight;
    const file = open[drawn]!;
    const [row] = file.rest;
    file.rest = file.rest.subarray(1);
    return row!;
  });
}

/** In order, those given back first; every prompt is consumed once an epoch. */
export class PromptQueue {
  /** The next fresh place. */
  private begun = 0;
  /** Handed out and not consumed, with their places. */
  private readonly out = new Map<Prompt, number>();
  /** Places to hand out again, as which attempt; in the order of their return. */
  private readonly waiting = new Map<number, number>();
  private readonly orders = new Map<number, Int32Array>();
  /** Of each prompt, in [0, 1]; NaN: never seen. */
  private solveRates: Float32Array;

  constructor(private readonly options: PromptQueueOptions) {
    this.solveRates = new Float32Array(options.promptIds.length).fill(Number.NaN);
  }

  hasNext(): boolean {
    return this.waiting.size > 0 || this.begun < this.length * this.options.epochs;
  }

  /** Null when nothing is left (what is out may still be given back). */
  next(): Prompt | null {
    if (!this.hasNext()) return null;
    const [again] = this.waiting;
    if (again) return this.handOut(...again);
    if (this.options.bySolveRate) this.chooseNext();
    return this.handOut(this.begun++, 0);
  }

  /** Trained, or dropped for good. `solveRate`: the mean score of its rollouts. */
  consume(prompt: Prompt, solveRate?: number): void {
    this.takeBack(prompt);
    if (solveRate !== undefined) this.solveRates[prompt.index] = Math.min(Math.max(solveRate, 0), 1);
  }

  /** False when its attempts are used up: then it is consumed. */
  giveBack(prompt: Prompt): boolean {
    const place = this.takeBack(prompt);
    const again = prompt.attempt + 1 < this.options.maxAttempts;
    if (again) this.waiting.set(place, prompt.attempt + 1);
    return again;
  }

  /** After `restore`, for the prompt of a finished group in the checkpoint: it does not run again. */
  claim({ promptId, epoch, attempt }: Omit<Prompt, "index">): Prompt {
    for (const place of this.waiting.keys()) {
      const prompt = this.promptAt(place);
      if (prompt.epoch === epoch && prompt.promptId === promptId) return this.handOut(place, attempt);
    }
    throw new Error(`no place of prompt ${promptId} waits to run again in epoch ${epoch}`);
  }

  serialize(): PromptQueueState {
    const { length, begun, options } = this;
    const more = options.deterministic ? 0 : 1;
    const again = [...this.out].map(([{ attempt }, place]): [number, number] => [place, attempt + more]);
    const attempts = [...this.waiting, ...again].sort(([one], [other]) => one - other);
    const state = { length, seed: options.seed, begun, attempts };
    if (!options.bySolveRate) return state;
    const orders = [...this.orders].map(([epoch, order]): [number, Int32Array] => [epoch, order.slice()]);
    return { ...state, orders, solveRates: this.solveRates.slice() };
  }

  /** Into a fresh queue of the same prompts and seed. What was out runs again. */
  restore({ length, seed, begun, attempts, orders = [], solveRates }: PromptQueueState): void {
    if (length !== this.length || seed !== this.options.seed) {
      const ours = `${this.length} by seed ${this.options.seed}`;
      throw usageError(`the checkpoint orders ${length} prompts by seed ${seed}, this run ${ours}`, {
        fix: "resume with the data.max_samples and run.seed that the run began with",
      });
    }
    this.begun = begun;
    for (const [place, attempt] of attempts) this.waiting.set(place, attempt);
    for (const [epoch, order] of orders) this.orders.set(epoch, order.slice());
    if (solveRates) this.solveRates = solveRates.slice();
  }

  /**
   * Draws what comes at the next fresh place among the epoch's prompts that have not come, by weights: the variance of
   * a success, p (1 - p), as in Foster et al. 2025 (arXiv 2502.12272); 1/6, its mean over all p, for one never seen. A
   * little for all, since each comes once an epoch.
   */
  private chooseNext(): void {
    const { begun, length, options } = this;
    const order = this.orderOf(Math.floor(begun / length));
    const first = begun % length;
    const weightOf = (index: number) => {
      const rate = this.solveRates[index]!;
      return 0.001 + (Number.isNaN(rate) ? 1 / 6 : rate * (1 - rate));
    };
    let total = 0;
    for (let at = first; at < length; at++) total += weightOf(order[at]!);
    // A stream of its own for each place: what a resume draws does not depend on what was drawn before it.
    let left = (makeRandomInteger(options.seed, Math.imul(begun + 1, 0x9e3779b1))(2 ** 32) / 2 ** 32) * total;
    let at = first;
    // Rounding may leave a crumb.
    while (at < length - 1 && left >= weightOf(order[at]!)) left -= weightOf(order[at++]!);
    [order[first], order[at]] = [order[at]!, order[first]!];
  }

  private get length(): number {
    return this.options.promptIds.length;
  }

  private handOut(place: number, attempt: number): Prompt {
    this.waiting.delete(place);
    const prompt = { ...this.promptAt(place), attempt };
    this.out.set(prompt, place);
    return prompt;
  }

  private takeBack(prompt: Prompt): number {
    const place = this.out.get(prompt);
    if (place === undefined) throw new Error(`prompt ${prompt.promptId} of epoch ${prompt.epoch} is not out`);
    this.out.delete(prompt);
    return place;
  }

  private promptAt(place: number): Omit<Prompt, "attempt"> {
    const epoch = Math.floor(place / this.length);
    const index = this.orderOf(epoch)[place % this.length]!;
    return { epoch, index, promptId: this.options.promptIds[index]! };
  }

  private orderOf(epoch: number): Int32Array {
    const known = this.orders.get(epoch);
    if (known) return known;
    const { seed, mixture } = this.options;
    // Of an epoch that is consumed nobody asks any more.
    const oldest = Math.min(this.begun, ...this.out.values(), ...this.waiting.keys());
    for (const past of this.orders.keys()) if (past < Math.floor(oldest / this.length)) this.orders.delete(past);
    const order = epochOrder(this.length, seed, epoch, mixture);
    this.orders.set(epoch, order);
    return order;
  }
}
