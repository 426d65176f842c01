import { firstAbove, firstAtLeast, firstWhere, type Series } from "./series.ts";

/** A number; null: a gap; undefined: nothing is here, the line goes on. */
export type Drawn = number | null | undefined;

export interface Range {
  from: number;
  to: number;
}

/** Points of a pixel column. */
const slots = 4;

/** The steps at which `downsample` puts its points: four a pixel column, and the range's ends. */
export function positions({ from, to }: Range, columns: number): number[] {
  const width = (to - from) / (columns * slots);
  return [from, ...Array.from({ length: columns * slots }, (_, at) => from + at * width), to];
}

/**
 * A line as a screen of `columns` pixels can show it between two steps: of each pixel column the first, the least, the
 * most and the last value, in their order, so no extreme is lost. NaN is a gap. Where lines enter and leave the range
 * they are cut at its ends. All lines of a chart have their points at `positions`, so they need no joining.
 */
export function downsample({ steps, values }: Series, range: Range, columns: number): Drawn[] {
  const drawn = new Array<Drawn>(columns * slots + 2).fill(undefined);
  const [start, end] = [firstAtLeast(steps, range.from), firstAbove(steps, range.to)];
  drawn[0] = crossing({ steps, values }, start, range.from);
  drawn[drawn.length - 1] = crossing({ steps, values }, end, range.to);
  for (const { column, first, next } of columnsOf(steps, start, end, range, columns)) {
    const [least, most] = extremes(values, first, next);
    let before = -1;
    for (const [slot, place] of [first, Math.min(least, most), Math.max(least, most), next - 1].entries()) {
      // Each place once: with few points most slots are empty.
      if (place <= before) continue;
      drawn[1 + column * slots + slot] = Number.isNaN(values[place]!) ? null : values[place]!;
      before = place;
    }
  }
  return drawn;
}

/** The mean of each pixel column, for stacks: what adds up goes on adding up. */
export function means({ steps, values }: Series, range: Range, columns: number): Drawn[] {
  const drawn = new Array<Drawn>(columns * slots + 2).fill(undefined);
  const [start, end] = [firstAtLeast(steps, range.from), firstAbove(steps, range.to)];
  for (const { column, first, next } of columnsOf(steps, start, end, range, columns)) {
    const mean = values.subarray(first, next).reduce((sum, value) => sum + value, 0) / (next - first);
    drawn[1 + column * slots] = Number.isNaN(mean) ? null : mean;
  }
  return drawn;
}

/** The pixel columns that hold points, with the places of the first of them and of the first behind them. */
function* columnsOf(steps: Float64Array, start: number, end: number, { from, to }: Range, columns: number) {
  // The last column takes in what stands at the very end.
  const columnOf = (at: number) => Math.min(columns - 1, Math.floor(((steps[at]! - from) / (to - from)) * columns));
  for (let first = start; first < end; ) {
    const column = columnOf(first);
    const next = firstWhere(first + 1, end, (at) => columnOf(at) > column);
    yield { column, first, next };
    first = next;
  }
}

/** The height of the line between the points before `index` and at it; undefined where it has none. */
function crossing({ steps, values }: Series, index: number, step: number): Drawn {
  if (index === 0 || index === steps.length) return undefined;
  const share = (step - steps[index - 1]!) / (steps[index]! - steps[index - 1]!);
  const height = values[index - 1]! + (values[index]! - values[index - 1]!) * share;
  return Number.isNaN(height) ? null : height;
}

const blockSize = 32;
/** Where in each whole block the least and the most stand: a wide range is read block by block. */
const blocks = new WeakMap<Float64Array, [least: number, most: number][]>();

/** Where the least and the most of the values from `start` to before `end` stand; -1 where all are NaN. */
function extremes(values: Float64Array, start: number, end: number): [least: number, most: number] {
  const known = end - start < 2 * blockSize ? [] : blocksOf(values);
  let [least, most] = [-1, -1];
  for (let at = start; at < end; ) {
    const block = at % blockSize === 0 && at + blockSize <= end ? known[at / blockSize] : undefined;
    const low = block ? block[0] : at;
    const high = block ? block[1] : at;
    if (values[low]! < (values[least] ?? Number.POSITIVE_INFINITY)) least = low;
    if (values[high]! > (values[most] ?? Number.NEGATIVE_INFINITY)) most = high;
    at += block ? blockSize : 1;
  }
  return [least, most];
}

function blocksOf(values: Float64Array): [number, number][] {
  const known = blocks.get(values);
  if (known) return known;
  const length = Math.floor(values.length / blockSize);
  const made = Array.from({ length }, (_, block) => extremes(values, block * blockSize, (block + 1) * blockSize));
  blocks.set(values, made);
  return made;
}
