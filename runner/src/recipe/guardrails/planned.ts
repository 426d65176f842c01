import { type Recipe, recipeKeys, valueAt } from "../schema.ts";
import type { Finding } from "./finding.ts";

/** What the recipe sets that only `plan` reads so far; whoever launches it makes errors of these. */
export function planned(recipe: Recipe): Finding[] {
  return [...recipeKeys.values()].flatMap(({ key, values, planned: isPlanned, default: runnable }): Finding[] => {
    const value = valueAt(recipe, key);
    if (!isPlanned || JSON.stringify(value) === JSON.stringify(runnable)) return [];
    // Text may hold a secret.
    const shown = typeof value === "number" || values.includes(String(value)) ? ` ${value}` : "";
    const takes = Array.isArray(runnable) ? "none" : runnable;
    const message = `${key}${shown} is planned, not runnable yet: only plan reads it, and a run takes ${takes}`;
    return [{ severity: "info", rule: "planned", keys: [key], message, settings: [{ key, value: runnable }] }];
  });
}
