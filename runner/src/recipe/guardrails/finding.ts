import type { Recipe } from "../schema.ts";

/** What a command does with a recipe. */
export type Verb = "run" | "sft" | "eval";

/** A key and a legal value for it. */
export interface Setting {
  key: string;
  value: unknown;
}

export interface Finding {
  severity: "error" | "warning" | "info";
  /** Name of the guardrail. */
  rule?: string;
  /** Every key that the rule reads; the first that the recipe sets is where the finding is shown. */
  keys: string[];
  /** What is wrong, why, and the nearest legal value. */
  message: string;
  /** Nearest legal values, each enough alone: an editor offers the first whose key the recipe sets. */
  settings?: Setting[];
}

/** A breach: its message, where one text says it all, or what differs from the guardrail's own. */
export type Breach = string | { message: string; keys?: string[]; settings?: Setting[] };

/** A breach that one setting would mend. */
export function mendedBy(key: string, value: unknown, message: string): Breach {
  return { message, settings: [{ key, value }] };
}

/** What must hold of a resolved recipe. */
export interface Guardrail {
  /** What holds, one sentence: hovers and reports show it. */
  holds: string;
  /** An error where it says nothing. */
  severity?: "warning";
  /** Of which it is asked; of `run` alone where it says nothing. */
  verbs?: readonly Verb[];
  /** Every key that `check` reads, the one to change first. */
  keys: readonly string[];
  /** A pure function: null where the recipe keeps the rule. */
  check(recipe: Recipe, verb: Verb): Breach | Breach[] | null;
}
