import { usageError } from "../errors.ts";

/** The seeded order of prompts, and which of them are done: what a resume needs to consume each one once an epoch. */

/** One turn of a prompt: `index` is its row, `attempt` counts from 0. */
export interface Prompt {
  epoch: number;
  index: number;
  promptId: string;
  attempt: number;
}

export interface PromptQueueOptions {
  promptIds: string[];
  seed: number;
  /** Passes over the prompts; Infinity: as many as are asked for. */
  epochs: number;
  /** A prompt given back this often is done. */
  maxAttempts: number;
  mixture?: Mixture;
}

/** The files that the prompts come from, one file's after another's. */
export interface Mixture {
  /** Prompts of each file. */
  sizes: number[];
  /** How often each file is drawn, relative to the others; null shuffles all prompts together. */
  weights: number[] | null;
}

/** Plain data for a checkpoint: prompts by their place in their epoch's order. */
export interface PromptQueueState {
  length: number;
  seed: number;
  /** Every epoch before this one is consumed. */
  epoch: number;
  /** Consumed places from `epoch` on, as `[start, end)`. */
  consumed: { epoch: number; ranges: [number, number][] }[];
  /** Places not consumed that were handed out before, with the attempt to hand out next. */
  attempts: { epoch: number; place: number; attempt: number }[];
}

/**
 * Uniform integers below a bound, from xoshiro128** (Blackman and Vigna, 2018) seeded through splitmix32; rejection
 * sampling, so without bias.
 */
export function makeRandomInteger(seed: number, stream: number): (bound: number) => number {
  let mixed = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(Math.floor(seed / 2 ** 32) + 1, 0x85ebca6b) ^ stream) >>> 0;
  const state = Uint32Array.from({ length: 4 }, () => {
    mixed = (mixed + 0x9e3779b9) >>> 0;
    let z = Math.imul(mixed ^ (mixed >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return z ^ (z >>> 15);
  });
  const rotate = (x: number, by: number) => (x << by) | (x >>> (32 - by));
  const next = () => {
    const [s0, s1, s2, s3] = state as unknown as [number, number, number, number];
    const result = Math.imul(rotate(Math.imul(s1, 5), 7), 9) >>> 0;
    state[2] = s2 ^ s0;
    state[3] = s3 ^ s1;
    state[1] = s1 ^ state[2]!;
    state[0] = s0 ^ state[3]!;
    state[2] = state[2]! ^ (s1 << 9);
    state[3] = rotate(state[3]!, 11);
    return result;
  };
  return (bound) => {
    const limit = 2 ** 32 - (2 ** 32 % bound);
    for (;;) {
      const value = next();
      if (value < limit) return value % bound;
    }
  };
}

/**
 * A permutation of `0..length`, another one each epoch. With weights every file is shuffled by itself, and each place
 * takes the next prompt of a file drawn by weight among those that have some left: nothing is repeated or left out.
 */
export function epochOrder(length: number, seed: number, epoch: number, mixture?: Mixture): Int32Array {
  const randomInteger = makeRandomInteger(seed, epoch);
  const sizes = mixture?.weights ? mixture.sizes : [length];
  let first = 0;
  const files = sizes.map((size, file) => {
    const rest = shuffle(first, size, randomInteger);
    first += size;
    return { rest, weight: mixture?.weights?.[file] ?? 1 };
  });
  return files.length === 1 ? files[0]!.rest : interleave(files, length, randomInteger);
}

/** `first..first + length` by Fisher and Yates' shuffle. */
function shuffle(first: number, length: number, randomInteger: (bound: number) => number): Int32Array {
  const order = Int32Array.from({ length }, (_, i) => first + i);
  for (let i = length - 1; i > 0; i--) {
    const j = randomInteger(i + 1);
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

function interleave(
  files: { rest: Int32Array; weight: number }[],
  length: number,
  randomInteger: (bound: number) => number,
): Int32Array {
  const order = new Int32Array(length);
  for (let place = 0; place < length; place++) {
    const open = files.filter(({ rest }) => rest.length > 0);
    const total = open.reduce((sum, { weight }) => sum + weight, 0);
    let left = (randomInteger(2 ** 32) / 2 ** 32) * total;
    let drawn = 0;
    // Rounding may leave a crumb beyond the last one.
    while (left >= open[drawn]!.weight && drawn < open.length - 1) left -= open[drawn++]!.weight;
    const file = open[drawn]!;
    order[place] = file.rest[0]!;
    file.rest = file.rest.subarray(1);
  }
  return order;
}

/** Where a prompt stands in one epoch. `waiting` was given back, or is to run again after a resume. */
type Place = { state: "out" | "waiting"; attempt: number } | { state: "consumed" };

/** One pass over the prompts. `cursor`: the places before it were handed out, or need to be looked up in `places`. */
class Epoch {
  readonly order: Int32Array;
  readonly places = new Map<number, Place>();
  cursor = 0;
  consumedCount = 0;

  constructor(order: Int32Array) {
    this.order = order;
  }

  consume(place: number): void {
    this.places.set(place, { state: "consumed" });
    this.consumedCount++;
  }
}

/** Hands out prompts in order, those given back first; every prompt is consumed once an epoch. */
export class PromptQueue {
  private readonly options: PromptQueueOptions;
  /** Those begun and not consumed whole, oldest first. */
  private readonly epochs = new Map<number, Epoch>();
  private readonly waiting: { epoch: number; place: number }[] = [];
  private lastEpoch = -1;

  constructor(options: PromptQueueOptions) {
    this.options = options;
  }

  hasNext(): boolean {
    return this.waiting.length > 0 || (this.length > 0 && this.openEpoch() !== null);
  }

  /** Null when nothing is left to hand out (what is out may still be given back). */
  next(): Prompt | null {
    const again = this.waiting.shift();
    if (again) {
      const epoch = this.epochs.get(again.epoch)!;
      const { attempt } = epoch.places.get(again.place) as { attempt: number };
      return this.handOut(again.epoch, again.place, attempt);
    }
    const number = this.openEpoch();
    if (number === null || this.length === 0) return null;
    return this.handOut(number, this.epochs.get(number)!.cursor++, 0);
  }

  /** Trained, or dropped for good. */
  consume(prompt: Prompt): void {
    const { epoch, place } = this.placeOut(prompt);
    epoch.consume(place);
    this.forgetConsumed();
  }

  /** Takes a dropped prompt back; false when its attempts are used up, and then it is consumed. */
  giveBack(prompt: Prompt): boolean {
    const { epoch, place } = this.placeOut(prompt);
    if (prompt.attempt + 1 >= this.options.maxAttempts) {
      this.consume(prompt);
      return false;
    }
    epoch.places.set(place, { state: "waiting", attempt: prompt.attempt + 1 });
    this.waiting.push({ epoch: prompt.epoch, place });
    return true;
  }

  /** After `restore`: a finished group that the checkpoint carried holds its prompt, which does not run again. */
  claim({ promptId, epoch, attempt }: Omit<Prompt, "index">): Prompt {
    const place = this.epochs.get(epoch)?.order.indexOf(this.options.promptIds.indexOf(promptId));
    const at = this.waiting.findIndex((waiting) => waiting.epoch === epoch && waiting.place === place);
    if (at < 0) throw new Error(`no place of prompt ${promptId} waits to run again in epoch ${epoch}`);
    const [waiting] = this.waiting.splice(at, 1);
    return this.handOut(epoch, waiting!.place, attempt);
  }

  serialize(): PromptQueueState {
    const begun = [...this.epochs];
    const attempts = begun.flatMap(([epoch, { places }]) =>
      [...places].flatMap(([place, it]) => {
        if (it.state === "consumed") return [];
        return [{ epoch, place, attempt: it.state === "out" ? it.attempt + 1 : it.attempt }];
      }),
    );
    const consumed = begun.map(([epoch, { places }]) => ({ epoch, ranges: toRanges(places) }));
    const { length } = this;
    return { length, seed: this.options.seed, epoch: begun[0]?.[0] ?? this.lastEpoch + 1, consumed, attempts };
  }

  /** Into a fresh queue of the same prompts and seed. What was out runs again, as the next attempt. */
  restore(state: PromptQueueState): void {
    if (state.length !== this.length || state.seed !== this.options.seed) {
      const ours = `${this.length} by seed ${this.options.seed}`;
      throw usageError(`the checkpoint orders ${state.length} prompts by seed ${state.seed}, this run ${ours}`, {
        fix: "resume with the data.max_samples and run.seed that the run began with",
      });
    }
    this.lastEpoch = state.epoch - 1;
    for (const { epoch, ranges } of state.consumed) {
      const begun = this.beginEpoch(epoch);
      for (const [start, end] of ranges) for (let place = start; place < end; place++) begun.consume(place);
    }
    for (const { epoch: number, place, attempt } of state.attempts) {
      this.epochs.get(number)!.places.set(place, { state: "waiting", attempt });
      this.waiting.push({ epoch: number, place });
    }
    for (const epoch of this.epochs.values()) while (epoch.places.has(epoch.cursor)) epoch.cursor++;
  }

  private get length(): number {
    return this.options.promptIds.length;
  }

  /** The epoch that the next fresh prompt comes from; begins one where needed. */
  private openEpoch(): number | null {
    for (const [number, epoch] of this.epochs) if (epoch.cursor < this.length) return number;
    if (this.lastEpoch + 1 >= this.options.epochs) return null;
    const number = this.lastEpoch + 1;
    this.beginEpoch(number);
    return number;
  }

  private beginEpoch(number: number): Epoch {
    const epoch = new Epoch(epochOrder(this.length, this.options.seed, number, this.options.mixture));
    this.epochs.set(number, epoch);
    this.lastEpoch = number;
    return epoch;
  }

  private handOut(number: number, place: number, attempt: number): Prompt {
    const epoch = this.epochs.get(number)!;
    epoch.places.set(place, { state: "out", attempt });
    while (epoch.places.has(epoch.cursor)) epoch.cursor++;
    const index = epoch.order[place]!;
    return { epoch: number, index, promptId: this.options.promptIds[index]!, attempt };
  }

  private placeOut(prompt: Prompt): { epoch: Epoch; place: number } {
    const epoch = this.epochs.get(prompt.epoch);
    const place = epoch?.order.indexOf(prompt.index) ?? -1;
    if (epoch?.places.get(place)?.state !== "out") {
      throw new Error(`prompt ${prompt.promptId} of epoch ${prompt.epoch} is not out`);
    }
    return { epoch, place };
  }

  /** From the oldest on: a later one that is done would else begin anew after a resume. */
  private forgetConsumed(): void {
    for (const [number, epoch] of this.epochs) {
      if (epoch.consumedCount < this.length) return;
      this.epochs.delete(number);
    }
  }
}

function toRanges(places: Map<number, Place>): [number, number][] {
  const ranges: [number, number][] = [];
  const consumed = [...places].flatMap(([place, { state }]) => (state === "consumed" ? [place] : []));
  for (const place of consumed.sort((a, b) => a - b)) {
    const last = ranges.at(-1);
    if (last?.[1] === place) last[1]++;
    else ranges.push([place, place + 1]);
  }
  return ranges;
}
