import { RunnerError } from "../src/errors.ts";

/** Measurements in pairs: both sides in turn, so that what disturbs the machine disturbs both. */
export interface Pair {
  ours: number[];
  theirs: number[];
}

/** One row of the report. `ours` and `theirs` have one value a repetition; `notRun` says why there are none. */
export interface Row extends Pair {
  group: string;
  name: string;
  /** Whom we are measured against. */
  peer: string;
  unit: "ms" | "s" | "GB";
  /** Processor time of the same work, where it was taken. */
  cpu?: Pair;
  /** Why there are no values. */
  notRun?: string;
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Theirs by ours, pair by pair: above 1 we are faster, or smaller. */
export function ratios({ ours, theirs }: Pair): number[] {
  return ours.map((value, index) => theirs[index]! / value);
}

/** What a case measured, or a row that says why it did not: one failure ends its case alone. */
export async function attempt(
  failed: Pick<Row, "group" | "name" | "peer" | "unit">,
  log: (line: string) => void,
  measure: () => Promise<Row[]>,
): Promise<Row[]> {
  try {
    return await measure();
  } catch (error) {
    if (!(error instanceof RunnerError)) throw error;
    log(`failed: ${failed.name}: ${error.message}`);
    return [{ ...failed, ours: [], theirs: [], notRun: `failed: ${error.message.split("\n")[0]}` }];
  }
}

/** Calls each side once unmeasured, then `repetitions` times; who goes first changes each time. */
export async function alternate<T>(
  repetitions: number,
  ours: () => Promise<T>,
  theirs: () => Promise<T>,
): Promise<{ ours: T[]; theirs: T[] }> {
  const taken = { ours: [] as T[], theirs: [] as T[] };
  await ours();
  await theirs();
  for (let repetition = 0; repetition < repetitions; repetition++) {
    if (repetition % 2 === 1) taken.theirs.push(await theirs());
    taken.ours.push(await ours());
    if (repetition % 2 === 0) taken.theirs.push(await theirs());
  }
  return taken;
}
