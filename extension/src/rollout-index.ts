import { setImmediate } from "node:timers/promises";
import { readRollouts } from "../../runner/src/telemetry/shards.ts";
import * as view from "../../runner/src/telemetry/views/rollouts.ts";
import { rowsAPage } from "./rollout-view.ts";

export interface RolloutQuery extends view.RolloutFilter {
  step?: number;
  sort: keyof view.RolloutRow;
  descending: boolean;
  /** From 0. */
  page: number;
}

export interface RolloutPage {
  rows: view.RolloutRow[];
  /** That the filters leave, and that are stored. */
  matching: number;
  stored: number;
  /** Words that filters may be. */
  stops: string[];
  drops: string[];
}

/** Milliseconds of reading after which others have their turn. */
const sliceMs = 15;

/** A run's rollouts, a line each. Shards are read group by group; the lines alone are kept. */
export class RolloutIndex {
  /** In the order in which they were stored. */
  private rows: view.RolloutRow[] = [];
  private reading: Promise<void> = Promise.resolve();

  constructor(private readonly directory: string) {}

  find(id: string): view.RolloutRow | undefined {
    return this.rows.findLast(({ rollout, group }) => rollout === id || group === id);
  }

  query({ sort, descending, page, step, ...filter }: RolloutQuery): RolloutPage {
    // Those of evals, where they are asked for or there are no others.
    const trained = this.rows.filter(({ dropped }) => (dropped === "eval") === (filter.dropped === "eval"));
    const listed = trained.length > 0 ? trained : this.rows;
    const fitting = listed.filter((row) => (step === undefined || row.step === step) && view.isShown(row, filter));
    // Equal ones stay newest first.
    fitting.reverse().sort((one, other) => compare(one[sort], other[sort], descending));
    const words = (of: "stop" | "dropped") => [...new Set(this.rows.flatMap((row) => row[of] ?? []))].sort();
    const rows = fitting.slice(page * rowsAPage, (page + 1) * rowsAPage);
    const counts = { matching: fitting.length, stored: this.rows.length };
    return { rows, ...counts, stops: words("stop"), drops: words("dropped") };
  }

  /** Reads what is not known yet, or `anew` what a resumed run has put in its place; in slices, others between. */
  async refresh(anew: boolean): Promise<void> {
    if (!anew && this.rows.length > 0) return;
    // One after the other: the newest has the last word.
    const reading = this.reading.then(() => this.read(anew));
    this.reading = reading.catch(() => {});
    await reading;
  }

  private async read(anew: boolean): Promise<void> {
    if (!anew && this.rows.length > 0) return;
    const rows: view.RolloutRow[] = [];
    let begun = performance.now();
    for await (const stored of readRollouts(this.directory)) {
      rows.push(...view.rolloutRows(stored));
      if (performance.now() - begun < sliceMs) continue;
      await setImmediate();
      begun = performance.now();
    }
    this.rows = rows;
  }
}

/** What is missing comes last, whichever way. */
function compare(one: string | number | null, other: string | number | null, descending: boolean): number {
  if (one === null || other === null) return Number(one === null) - Number(other === null);
  const order = typeof one === "string" ? one.localeCompare(String(other)) : one - Number(other);
  return descending ? -order : order;
}
