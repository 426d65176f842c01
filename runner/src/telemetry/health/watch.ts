import type { Recipe } from "../../recipe/schema.ts";
import type { RunState } from "../fold.ts";
import type { EventLog } from "../log.ts";
import { type HealthRule, healthRules } from "./rules.ts";

/** A rule that goes on holding is told again after as many steps. */
const quietSteps = 50;

/** Asks the rules after each step; what begins to be wrong becomes an event, alarms first. */
export function watchHealth(log: EventLog, recipe: Recipe): void {
  const { run } = log;
  log.onEvent(({ type }) => {
    if (type !== "step") return;
    const { step } = run;
    for (const one of healthRules) {
      const { rule, severity } = one;
      if (run.health.some((told) => told.rule === rule && told.step > step - quietSteps)) continue;
      const finding = one.check(run, recipe);
      if (finding) log.emit({ type: "health", rule, severity, step, ...finding, rolloutIds: evidenceOf(one, run) });
    }
  });
}

function evidenceOf({ evidence }: HealthRule, { funnels }: RunState): string[] {
  for (const kind of evidence) {
    const found = funnels.findLast(({ examples }) => examples?.[kind]);
    if (found) return found.examples![kind]!;
  }
  return [];
}
