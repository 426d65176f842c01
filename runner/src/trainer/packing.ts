import type { PackedRows } from "molt-native";
import { Mask } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import { dealInto } from "./balance.ts";
import type { TrainRow } from "./protocol.ts";

/** What the phases have added to a row; arrays have one value a token. */
export interface StoredRow extends TrainRow {
  old?: Float32Array;
  ref?: Float32Array;
  advantages?: Float32Array;
  /** A critic's, before the update, and what they are trained towards. */
  values?: Float32Array;
  returns?: Float32Array;
  /** What each of its tokens counts in the update (`algorithms/aggregation.ts`); 1 where nobody says. */
  share?: number;
  /** What the update found: the log-probabilities that it compared the behaviour policy's with, and nats of entropy. */
  trainerLogprobs?: Float32Array;
  entropy?: Float32Array;
}

/** A masked token, with one before it to predict it. */
export function isTrained(mask: Uint8Array, t: number): boolean {
  return t > 0 && mask[t] === Mask.trained;
}

export function trainedTokens(mask: Uint8Array): number {
  return mask.reduce((count, _, t) => count + Number(isTrained(mask, t)), 0);
}

interface Packable {
  id: string;
  tokens: { length: number };
}

/** First-fit decreasing: whole rows, at most `budget` tokens each. */
export function packToBudget<T extends Packable>(rows: readonly T[], budget: number): T[][] {
  const bins: { rows: T[]; left: number }[] = [];
  for (const row of [...rows].sort((a, b) => b.tokens.length - a.tokens.length)) {
    const length = row.tokens.length;
    if (length > budget) {
      const cap = `train.max_tokens_per_device x fsdp.cp_size is ${budget}`;
      throw new RunnerError(`row ${row.id} has ${length} tokens, ${cap}`, {
        fix: "raise train.max_tokens_per_device to the longest row, or lower data.max_len",
      });
    }
    const bin = bins.find((candidate) => candidate.left >= length) ?? { rows: [], left: budget };
    if (bin.rows.length === 0) bins.push(bin);
    bin.rows.push(row);
    bin.left -= length;
  }
  return bins.map((bin) => bin.rows);
}

/**
 * The same number of microbatches for each of `ranks`, at most `budget` tokens each; the last may be empty. As few as
 * first-fit finds, then evened out by cost where that leaves every row room. All ranks' i-th run at once: they are of
 * nearly equal cost, the dearest go first, and ranks differ in all by the dearest microbatch at most.
 */
export function dealMicrobatches<T extends Packable>(
  rows: readonly T[],
  ranks: number,
  budget: number,
  cost: (tokens: number) => number,
): T[][][] {
  const packed = packToBudget(rows, budget);
  const count = Math.ceil(packed.length / ranks);
  const costOf = (row: T) => cost(row.tokens.length);
  const lengthOf = (bin: readonly T[]) => bin.reduce((sum, row) => sum + row.tokens.length, 0);
  const hasRoom = (bin: readonly T[], row: T) => lengthOf(bin) + row.tokens.length <= budget;
  const even = dealInto(rows, count * ranks, costOf, hasRoom) ?? packed;
  const bins = even.map((bin) => ({ bin, cost: bin.reduce((sum, row) => sum + costOf(row), 0) }));
  bins.sort((one, other) => other.cost - one.cost);
  const shares = Array.from({ length: ranks }, () => ({ microbatches: [] as T[][], cost: 0 }));
  for (let i = 0; i < count; i++) {
    shares.sort((one, other) => one.cost - other.cost);
    for (const [rank, share] of shares.entries()) {
      const { bin, cost } = bins[i * ranks + rank] ?? { bin: [], cost: 0 };
      share.microbatches.push(bin);
      share.cost += cost;
    }
  }
  return shares.map(({ microbatches }) => microbatches);
}

/**
 * Rows laid end to end and shifted: slot t belongs to the token at t + 1 of its row, predicted by position t. Per-token
 * arrays `[T]` hold 0 wherever `trained` is 0, whatever the rows hold; those of unscored rows are null.
 */
export function packRows(rows: readonly StoredRow[]) {
  const cu = new Int32Array(rows.length + 1);
  rows.forEach(({ tokens }, index) => {
    cu[index + 1] = cu[index]! + tokens.length;
  });
  const length = cu[rows.length]!;
  const tokens = Int32Array.from(rows.flatMap((row) => [...row.tokens]));
  const spread = <T extends Int32Array | Float32Array>(values: T, read: (row: StoredRow, t: number) => number): T => {
    eachTrained(rows, cu, (row, t, slot) => {
      values[slot] = read(row, t);
    });
    return values;
  };
  const floats = (read: (row: StoredRow, t: number) => number) => spread(new Float32Array(length), read);
  const scores = (name: "old" | "ref" | "values" | "returns") =>
    rows.every((row) => row[name]) ? floats((row, t) => row[name]![t]!) : null;
  const targets = spread(new Int32Array(length).fill(-1), (row, t) => row.tokens[t]!);
  const temperatures = spread(new Float32Array(length).fill(1), (row, t) => row.temperatures[t]!);
  const packed: PackedRows = { tokens, cu, targets, temperatures };
  return {
    packed,
    trained: Uint8Array.from(targets, (target) => Number(target >= 0)),
    shares: floats((row) => row.share ?? 1),
    behaviour: floats((row, t) => row.logprobs[t]!),
    advantages: floats((row, t) => row.advantages?.[t] ?? 0),
    old: scores("old"),
    ref: scores("ref"),
    values: scores("values"),
    returns: scores("returns"),
  };
}

/** Undoes the shift: values `[T]` as one array a row, 0 on untrained tokens. */
export function unpackRows(rows: readonly StoredRow[], cu: Int32Array, values: Float32Array): Float32Array[] {
  const unpacked = rows.map(({ tokens }) => new Float32Array(tokens.length));
  eachTrained(rows, cu, (_, t, slot, index) => {
    unpacked[index]![t] = values[slot]!;
  });
  return unpacked;
}

function eachTrained(
  rows: readonly StoredRow[],
  cu: Int32Array,
  visit: (row: StoredRow, t: number, slot: number, index: number) => void,
): void {
  rows.forEach((row, index) => {
    for (let t = 1; t < row.tokens.length; t++) {
      if (isTrained(row.mask, t)) visit(row, t, cu[index]! + t - 1, index);
    }
  });
}

/** For a rank without rows, at weight 0, so that its collectives match. */
export function dummyRow(): StoredRow {
  const row = { id: "dummy", tokens: new Int32Array(2), mask: new Uint8Array(2) };
  row.mask[1] = Mask.trained;
  const [none, temperatures] = [new Float32Array(2), new Float32Array(2).fill(1)];
  return { ...row, logprobs: none, temperatures, values: none, returns: none, share: 0 };
}
