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
  mixture?: Mixture;
}

export interface Mixture {
  sizes: number[];
  /** How often each file is drawn, relatively; null shuffles all together. */
  weights: number[] | null;
}

/** For a checkpoint; prompts by their place in their epoch's order. */
export interface PromptQueueState {
  length: number;
  seed: number;
  /** The first that is not wholly consumed. */
  epoch: number;
  /** From `epoch` on, as `[start, end)`. */
  consumed: { epoch: number; ranges: [number, number][] }[];
  /** Begun and not consumed, with the attempt to hand out next. */
  attempts: { epoch: number; place: number; attempt: number }[];
}

/** Uniform: xoshiro128** (Blackman and Vigna, 2018) seeded through splitmix32, with rejection against bias. */
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
 * A permutation of `0..length`. With weights every file is shuffled by itself, and each place takes the next prompt of
 * a file drawn by weight among those with some left.
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

/** `first..first + length` by Fisher and Yates. */
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
    // Rounding may leave a crumb.
    while (left >= open[drawn]!.weight && drawn < open.length - 1) left -= open[drawn++]!.weight;
    const file = open[drawn]!;
    order[place] = file.rest[0]!;
    file.rest = file.rest.subarray(1);
  }
  return order;
}

/** `waiting`: given back, or to run again after a resume, as this attempt. */
interface Place {
  state: "out" | "waiting" | "consumed";
  attempt: number;
}

/** Places are begun in order: the next fresh one is the number of those begun. */
interface Epoch {
  number: number;
  order: Int32Array;
  places: Map<number, Place>;
  consumed: number;
}

/** In order, those given back first; every prompt is consumed once an epoch. */
export class PromptQueue {
  private readonly options: PromptQueueOptions;
  /** Begun and not wholly consumed, oldest first. */
  private readonly epochs = new Map<number, Epoch>();
  private readonly waiting: { epoch: Epoch; place: number }[] = [];
  private lastEpoch = -1;

  constructor(options: PromptQueueOptions) {
    this.options = options;
  }

  hasNext(): boolean {
    return this.waiting.length > 0 || this.openEpoch() !== null;
  }

  /** Null when nothing is left (what is out may still be given back). */
  next(): Prompt | null {
    const again = this.waiting.shift();
    if (again) return this.handOut(again.epoch, again.place, again.epoch.places.get(again.place)!.attempt);
    const epoch = this.openEpoch();
    return epoch && this.handOut(epoch, epoch.places.size, 0);
  }

  /** Trained, or dropped for good. */
  consume(prompt: Prompt): void {
    const { epoch, place } = this.placeOut(prompt);
    this.settle(epoch, place);
    // From the oldest on: a later one that is done would begin anew after a resume.
    for (const { number, consumed } of this.epochs.values()) {
      if (consumed < this.length) return;
      this.epochs.delete(number);
    }
  }

  /** False when its attempts are used up: then it is consumed. */
  giveBack(prompt: Prompt): boolean {
    const { epoch, place } = this.placeOut(prompt);
    const again = prompt.attempt + 1 < this.options.maxAttempts;
    if (again) this.wait(epoch, place, prompt.attempt + 1);
    else this.consume(prompt);
    return again;
  }

  /** After `restore`, for the prompt of a finished group in the checkpoint: it does not run again. */
  claim({ promptId, epoch: number, attempt }: Omit<Prompt, "index">): Prompt {
    const isIt = (epoch: Epoch, place: number) =>
      epoch.number === number && this.options.promptIds[epoch.order[place]!] === promptId;
    const at = this.waiting.findIndex(({ epoch, place }) => isIt(epoch, place));
    if (at < 0) throw new Error(`no place of prompt ${promptId} waits to run again in epoch ${number}`);
    const [{ epoch, place }] = this.waiting.splice(at, 1) as [{ epoch: Epoch; place: number }];
    return this.handOut(epoch, place, attempt);
  }

  serialize(): PromptQueueState {
    const { length } = this;
    const begun = [...this.epochs.values()];
    const attempts = begun.flatMap(({ number: epoch, places }) =>
      [...places].flatMap(([place, { state, attempt }]) =>
        state === "consumed" ? [] : [{ epoch, place, attempt: state === "out" ? attempt + 1 : attempt }],
      ),
    );
    const consumed = begun.map(({ number, places }) => ({ epoch: number, ranges: toRanges(places) }));
    return { length, seed: this.options.seed, epoch: begun[0]?.number ?? this.lastEpoch + 1, consumed, attempts };
  }

  /** Into a fresh queue of the same prompts and seed. What was out runs again. */
  restore(state: PromptQueueState): void {
    if (state.length !== this.length || state.seed !== this.options.seed) {
      const ours = `${this.length} by seed ${this.options.seed}`;
      throw usageError(`the checkpoint orders ${state.length} prompts by seed ${state.seed}, this run ${ours}`, {
        fix: "resume with the data.max_samples and run.seed that the run began with",
      });
    }
    this.lastEpoch = state.epoch - 1;
    for (const { epoch: number, ranges } of state.consumed) {
      const epoch = this.beginEpoch(number);
      for (const [start, end] of ranges) for (let place = start; place < end; place++) this.settle(epoch, place);
    }
    for (const { epoch, place, attempt } of state.attempts) this.wait(this.epochs.get(epoch)!, place, attempt);
  }

  private get length(): number {
    return this.options.promptIds.length;
  }

  /** Of the next fresh prompt; begins one where needed. */
  private openEpoch(): Epoch | null {
    for (const epoch of this.epochs.values()) if (epoch.places.size < this.length) return epoch;
    const isLast = this.length === 0 || this.lastEpoch + 1 >= this.options.epochs;
    return isLast ? null : this.beginEpoch(this.lastEpoch + 1);
  }

  private beginEpoch(number: number): Epoch {
    const order = epochOrder(this.length, this.options.seed, number, this.options.mixture);
    const epoch = { number, order, places: new Map<number, Place>(), consumed: 0 };
    this.epochs.set(number, epoch);
    this.lastEpoch = number;
    return epoch;
  }

  private handOut(epoch: Epoch, place: number, attempt: number): Prompt {
    epoch.places.set(place, { state: "out", attempt });
    const index = epoch.order[place]!;
    return { epoch: epoch.number, index, promptId: this.options.promptIds[index]!, attempt };
  }

  private wait(epoch: Epoch, place: number, attempt: number): void {
    epoch.places.set(place, { state: "waiting", attempt });
    this.waiting.push({ epoch, place });
  }

  private settle(epoch: Epoch, place: number): void {
    epoch.places.set(place, { state: "consumed", attempt: 0 });
    epoch.consumed++;
  }

  private placeOut(prompt: Prompt): { epoch: Epoch; place: number } {
    const epoch = this.epochs.get(prompt.epoch);
    const place = epoch?.order.indexOf(prompt.index) ?? -1;
    if (epoch?.places.get(place)?.state !== "out") {
      throw new Error(`prompt ${prompt.promptId} of epoch ${prompt.epoch} is not out`);
    }
    return { epoch, place };
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
