import type { Range } from "../../runner/src/recipe/diagnostic.ts";
import { recipeKeys } from "../../runner/src/recipe/schema.ts";
import type { RunState } from "../../runner/src/telemetry/fold.ts";
import { fixed } from "../../runner/src/telemetry/views/lines.ts";

/** By dotted key: where a recipe's document gives a value. */
export type Places = Record<string, Range>;

/** Shown beside a line of keys, those that most of them move first. */
const mostValues = 4;

/** What a run last had of the metrics that a line's keys move, by line from 0; lines without one are left out. */
export function valueLines({ steps, evals }: RunState, places: Places): { line: number; text: string }[] {
  const newest: Record<string, number> = { ...evals.at(-1)?.metrics, ...steps.at(-1)?.metrics };
  const byLine = new Map<number, string[]>();
  for (const [key, { start }] of Object.entries(places)) {
    const names = (recipeKeys.get(key)?.metrics ?? []).filter((name) => newest[name] !== undefined);
    byLine.set(start.line, [...(byLine.get(start.line) ?? []), ...names]);
  }
  return [...byLine].flatMap(([line, all]) => {
    const names = [...new Set(all)].slice(0, mostValues);
    return names.length > 0 ? [{ line, text: names.map((name) => `${name} ${fixed(newest[name])}`).join("  ") }] : [];
  });
}

/** As long as the runner keeps silent of a rule that goes on holding. */
const quietSteps = 50;

export interface Alarm {
  /** Of the key most likely at fault; the file's first line where the document does not give it. */
  range: Range;
  rule: string;
  severity: RunState["health"][number]["severity"];
  message: string;
  rolloutIds: string[];
}

/** The newest of each rule that may still hold. */
export function alarmLines({ health, step }: RunState, places: Places): Alarm[] {
  const newest = new Map(health.filter((event) => event.step > step - quietSteps).map((event) => [event.rule, event]));
  return [...newest.values()].map(({ rule, severity, message, key = "", rolloutIds, step }) => {
    const firstLine = { start: { line: 0, character: 0 }, end: { line: 0, character: 1000 } };
    const text = `${message} (step ${step}${key && `: look at ${key}`})`;
    return { range: places[key] ?? firstLine, rule, severity, message: text, rolloutIds };
  });
}
