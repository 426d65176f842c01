import type { PackedRows } from "molt-native";
import { Mask } from "../agents/types.ts";
import { RunnerError } from "../errors.ts";
import type { TrainRow } from "./protocol.ts";

/** What the phases have added to a row; arrays have one value a token. */
export interface StoredRow extends TrainRow {
  old?: Float32Array;
  ref?: Float32Array;
  advantages?: Float32Array;
}

/** A masked token, with one before it to predict it. */
export function isTrained(mask: Uint8Array, t: number): boolean {
  return t > 0 && mask[t] === Mask.trained;
}

export function trainedTokens(mask: Uint8Array): number {
  return mask.reduce((count, _, t) => count + Number(isTrained(mask, t)), 0);
}

/** First-fit decreasing: whole rows, at most `budget` tokens each. */
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
 * Rows laid end to end and shifted: slot t belongs to the token at t + 1 of its row, predicted by position t. Per-token
 * arrays `[T]` hold 0 wherever `trained` is 0, whatever the rows hold.
 */
export interface PackedBatch {
  packed: PackedRows;
  trained: Uint8Array;
  behaviour: Float32Array;
  advantages: Float32Array;
  /** Null for unscored rows. */
  old: Float32Array | null;
  ref: Float32Array | null;
}

export function packRows(rows: readonly StoredRow[]): PackedBatch {
  const cu = new Int32Array(rows.length + 1);
  rows.forEach(({ tokens }, index) => {
    cu[index + 1] = cu[index]! + tokens.length;
  });
  const length = cu[rows.length]!;
  const tokens = new Int32Array(length);
  const targets = new Int32Array(length).fill(-1);
  const temperatures = new Float32Array(length).fill(1);
  const trained = new Uint8Array(length);
  rows.forEach((row, index) => {
    tokens.set(row.tokens, cu[index]);
  });
  eachTrained(rows, cu, (row, t, slot) => {
    trained[slot] = 1;
    targets[slot] = row.tokens[t]!;
    temperatures[slot] = row.temperatures[t]!;
  });
  const gather = (name: "logprobs" | "advantages" | "old" | "ref") => {
    const values = new Float32Array(length);
    eachTrained(rows, cu, (row, t, slot) => {
      values[slot] = row[name]?.[t] ?? 0;
    });
    return values;
  };
  return {
    packed: { tokens, cu, targets, temperatures },
    trained,
    behaviour: gather("logprobs"),
    advantages: gather("advantages"),
    old: rows.every(({ old }) => old) ? gather("old") : null,
    ref: rows.every(({ ref }) => ref) ? gather("ref") : null,
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
  return { ...row, logprobs: new Float32Array(2), temperatures: new Float32Array(2).fill(1) };
}
