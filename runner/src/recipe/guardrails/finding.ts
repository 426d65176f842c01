import type { Recipe } from "../schema.ts";

/** What a command does with a recipe. */
export type Verb = "run" | "sft" | "eval";

export interface Finding {
  severity: "error" | "warning";
  /** Every key that the rule reads; the first that the recipe sets is where the finding is shown. */
  keys: string[];
  /** What is wrong, why, and the nearest legal value. */
  message: string;
}

/** A pure function of the resolved recipe. */
export type Rule = (recipe: Recipe, verb: Verb) => Finding[];

export function refuse(keys: string[], message: string): Finding[] {
  return [{ severity: "error", keys, message }];
}

export function warn(keys: string[], message: string): Finding[] {
  return [{ severity: "warning", keys, message }];
}
