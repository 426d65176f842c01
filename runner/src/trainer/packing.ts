import type { PackedRows } from "molt-native";
import { Mask } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import type { TrainRow } from "./protocol.ts";

/** A row as a rank keeps it: what the phases have added so far. Arrays have one value a token. */
export interface StoredRow extends TrainRow {
  old?: Float32Array;
  ref?: Float32Array;
  advantages?: Float32Array;
}

/** Position t holds the trained token when `mask[t]` says so and a token before it predicts it. */
export function isTrained(mask: Uint8Array, t: number): boolean {
  return t > 0 && mask[t] === Mask.trained;
}

export function trainedTokens(mask: Uint8Array): number {
  return mask.reduce((count, _, t) => count + Number(isTrained(mask, t)), 0);
}

/** First-fit decreasing: microbatches of whole rows, each of at most `budget` tokens. */
export function packToBudget<T extends { id: string; tokens: { length: number } }>(
  rows: readonly T[],
  budget: number,
): T[][] {
  const bins: { rows: T[]; left: number }[] = [];
  for (const row of [...rows].sort((a, b) => b.tokens.length - a.tokens.length)) {
    const length = row.tokens.length;
    if (length > budget) {
      throw new RunnerError(`row ${row.id} has ${length} tokens, train.max_tokens_per_device is ${budget}`, {
        fix: `set train.max_tokens_per_device to ${length} or more, or lower data.max_len`,
      });
    }
    let bin = bins.find((candidate) => candidate.left >= length);
    if (bin === undefined) {
      bin = { rows: [], left: budget };
      bins.push(bin);
    }
    bin.rows.push(row);
    bin.left -= length;
  }
  return bins.map((bin) => bin.rows);
}

/**
 * A microbatch, laid end to end and shifted: slot t belongs to the token at t + 1 of its row, predicted by position t.
 * The per-token arrays `[T]` hold 0 wherever `trained` is 0, whatever the rows hold there.
 */
export interface PackedBatch {
  packed: PackedRows;
  trained: Uint8Array;
  behaviour: Float32Array;
  advantages: Float32Array;
  /** Null when the rows were not scored. */
  old: Float32Array | null;
  ref: Float32Array | null;
}

export function packRows(rows: readonly StoredRow[]): PackedBatch {
  const cu = new Int32Array(rows.length + 1);
  rows.forEach((row, index) => {
    cu[index + 1] = cu[index]! + row.tokens.length;
  });
  const length = cu[rows.length]!;
  const tokens = new Int32Array(length);
  const targets = new Int32Array(length).fill(-1);
  const temperatures = new Float32Array(length).fill(1);
  const trained = new Uint8Array(length);
  rows.forEach((row, index) => {
    const start = cu[index]!;
    tokens.set(row.tokens, start);
    for (let t = 1; t < row.tokens.length; t++) {
      if (!isTrained(row.mask, t)) continue;
      trained[start + t - 1] = 1;
      targets[start + t - 1] = row.tokens[t]!;
      temperatures[start + t - 1] = row.temperatures[t]!;
    }
  });
  const gather = (values: (row: StoredRow) => Float32Array | undefined) => gatherShifted(rows, cu, values);
  return {
    packed: { tokens, cu, targets, temperatures },
    trained,
    behaviour: gather((row) => row.logprobs),
    advantages: gather((row) => row.advantages),
    old: rows.every((row) => row.old) ? gather((row) => row.old) : null,
    ref: rows.every((row) => row.ref) ? gather((row) => row.ref) : null,
  };
}

function gatherShifted(
  rows: readonly StoredRow[],
  cu: Int32Array,
  valuesOf: (row: StoredRow) => Float32Array | undefined,
): Float32Array {
  const result = new Float32Array(cu[rows.length]!);
  rows.forEach((row, index) => {
    const values = valuesOf(row);
    if (values === undefined) return;
    for (let t = 1; t < row.tokens.length; t++) {
      if (isTrained(row.mask, t)) result[cu[index]! + t - 1] = values[t]!;
    }
  });
  return result;
}

/** The inverse of the shift: packed values `[T]` as one array a row, 0 on untrained tokens. */
export function unpackRows(rows: readonly StoredRow[], cu: Int32Array, values: Float32Array): Float32Array[] {
  return rows.map((row, index) => {
    const result = new Float32Array(row.tokens.length);
    for (let t = 1; t < result.length; t++) {
      if (isTrained(row.mask, t)) result[t] = values[cu[index]! + t - 1]!;
    }
    return result;
  });
}

/** What a rank without rows runs, with weight 0, so that its collectives match the others'. */
export function dummyRow(): StoredRow {
  const row = { id: "dummy", tokens: new Int32Array(2), mask: new Uint8Array(2) };
  row.mask[1] = Mask.trained;
  return { ...row, logprobs: new Float32Array(2), temperatures: new Float32Array(2).fill(1) };
}
