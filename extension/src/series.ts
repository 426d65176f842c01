import type { TimedEvent } from "../../runner/src/telemetry/events.ts";
import type { RunState } from "../../runner/src/telemetry/fold.ts";
import { prefixes, timeParts } from "./charts.ts";

/** Metrics of one kind of event, over ascending steps; NaN where a row lacks one. `table`: the names' beginning. */
export interface Rows {
  table: string;
  steps: Float64Array;
  columns: { name: string; values: Float64Array }[];
}

/** The first step whose rows an event changes; null: a snapshot. */
export function changedFrom(event: TimedEvent | null, state: RunState): number {
  if (event === null) return 0;
  if (event.type === "resumed") return event.fromStep + 1;
  return "step" in event ? event.step : state.step;
}

type Metrics = Record<string, number | undefined>;

/** All of a run from step `from` on, a table a kind of event. */
export function rowsOf(run: RunState, from = 0): Rows[] {
  const { evals, groups, tokens, engines } = prefixes;
  const tables = [
    tableOf("", run.steps, from, ({ metrics, seconds }) => ({ ...metrics, ...timesOf(metrics, seconds) })),
    tableOf(evals, run.evals, from, ({ metrics }) => metrics),
    tableOf(groups, run.tallies, from, ({ step, dropped, ...counts }) => ({ ...counts, ...dropped })),
    tableOf(tokens, run.funnels, from, ({ sampled, trained, masked, dropped }) => {
      // A reason may be among both.
      const lost = Object.entries(dropped).map(([reason, count]) => [`dropped/${reason}`, count]);
      return { sampled, trained, ...masked, ...Object.fromEntries(lost) };
    }),
    tableOf(engines, lanesOf(run), from, ({ lanes }) => lanes),
  ];
  return tables.filter(({ steps }) => steps.length > 0);
}

/** A step's seconds as a stack whose sum is the step's, and what is made of them. */
function timesOf({ tokens_trained: tokens }: Metrics, { step, generate = 0, ...seconds }: Metrics = {}): Metrics {
  if (!step) return {};
  const known = timeParts.reduce((sum, part) => sum + (seconds[part] ?? 0), 0);
  const all: Metrics = { ...seconds, other: Math.max(0, step - known) };
  const stack = timeParts.map((part) => [prefixes.time + part, all[part] ?? 0]);
  const share = { tokens_per_second: (tokens ?? Number.NaN) / step, generate_share: generate / step };
  return { ...share, ...Object.fromEntries(stack) };
}

/** A line an engine, at the height of its number while it is up: at each of its events, and now. */
function lanesOf({ engines, step: now }: RunState) {
  const lanes: Record<string, number> = {};
  const rows = engines.map(({ engine, state, step }) => {
    lanes[engine] = state === "started" || state === "restarted" ? engine : Number.NaN;
    return { step, lanes: { ...lanes } };
  });
  return rows.length > 0 ? [...rows, { step: now, lanes }] : [];
}

function tableOf<Row extends { step: number }>(
  table: string,
  all: Row[],
  from: number,
  metricsOf: (row: Row) => Metrics,
): Rows {
  const rows = all.slice(all.findLastIndex(({ step }) => step < from) + 1);
  const columns = new Map<string, Float64Array>();
  for (const [index, row] of rows.entries()) {
    for (const [name, value] of Object.entries(metricsOf(row))) {
      if (!columns.has(name)) columns.set(name, gap(rows.length));
      columns.get(name)![index] = value ?? Number.NaN;
    }
  }
  const steps = Float64Array.from(rows, ({ step }) => step);
  return { table, steps, columns: [...columns].map(([name, values]) => ({ name: table + name, values })) };
}

const gap = (length: number) => new Float64Array(length).fill(Number.NaN);

/** One metric of a run: both of one length, steps ascending. */
export interface Series {
  steps: Float64Array;
  values: Float64Array;
}

/** What a page has of one run. Its arrays are never written to again. */
export class RunSeries {
  private readonly tables = new Map<string, { steps: Float64Array; columns: Map<string, Float64Array> }>();

  get names(): string[] {
    return [...this.tables.values()].flatMap(({ columns }) => [...columns.keys()]);
  }

  /** The first and the last step of every table. */
  get ends(): number[] {
    return [...this.tables.values()].flatMap(({ steps }) => (steps.length > 0 ? [steps[0]!, steps.at(-1)!] : []));
  }

  get(name: string): Series | null {
    for (const { steps, columns } of this.tables.values()) {
      const values = columns.get(name);
      if (values) return { steps, values };
    }
    return null;
  }

  /** Takes in what `rowsOf(run, from)` gave: it stands for everything from that step on. */
  replaceFrom(from: number, tables: Rows[]): void {
    const given = new Map(tables.map((rows) => [rows.table, rows]));
    for (const table of new Set([...this.tables.keys(), ...given.keys()])) {
      const before = this.tables.get(table) ?? { steps: gap(0), columns: new Map<string, Float64Array>() };
      const { steps, columns } = given.get(table) ?? { steps: gap(0), columns: [] };
      const kept = firstAtLeast(before.steps, from);
      const added = new Map(columns.map(({ name, values }) => [name, values]));
      const join = (name: string) => {
        const old = before.columns.get(name)?.subarray(0, kept) ?? gap(kept);
        return [name, concat(old, added.get(name) ?? gap(steps.length))] as const;
      };
      const names = new Set([...before.columns.keys(), ...added.keys()]);
      const joined = { steps: concat(before.steps.subarray(0, kept), steps), columns: new Map([...names].map(join)) };
      this.tables.set(table, joined);
    }
  }
}

function concat(first: Float64Array, second: Float64Array): Float64Array {
  const both = new Float64Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

/** Where, in ascending numbers, the first that is not below `bound` stands; their length if none is. */
export function firstAtLeast(ascending: Float64Array, bound: number): number {
  return firstWhere(0, ascending.length, (at) => ascending[at]! >= bound);
}

export function firstAbove(ascending: Float64Array, bound: number): number {
  return firstWhere(0, ascending.length, (at) => ascending[at]! > bound);
}

/** The first place from `low` on for which it holds, as it does for all after that; `high` if for none. */
export function firstWhere(low: number, high: number, holds: (place: number) => boolean): number {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
