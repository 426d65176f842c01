import type { Recipe } from "../schema.ts";
import * as algorithms from "./algorithms.ts";
import * as engines from "./engines.ts";
import type { Finding, Guardrail, Verb } from "./finding.ts";
import * as groups from "./groups.ts";
import * as inputs from "./inputs.ts";
import { planned } from "./planned.ts";
import * as ranks from "./ranks.ts";
import * as sampling from "./sampling.ts";

export type { Finding, Guardrail, Setting, Verb } from "./finding.ts";

/** Every guardrail by its name, which diagnostics carry as `rule`. */
export const guardrailRules: ReadonlyMap<string, Guardrail> = new Map(
  Object.entries({ ...inputs, ...sampling, ...groups, ...ranks, ...engines, ...algorithms }),
);

export function guardrails(recipe: Recipe, verb: Verb): Finding[] {
  const findings: Finding[] = [];
  for (const [rule, { severity = "error", verbs = ["run"], keys, check }] of guardrailRules) {
    const breaches = verbs.includes(verb) ? [check(recipe, verb) ?? []].flat() : [];
    for (const breach of breaches) {
      const own = typeof breach === "string" ? { message: breach } : breach;
      findings.push({ severity, rule, keys: [...keys], ...own });
    }
  }
  return [...findings, ...planned(recipe)];
}

/** Names of the guardrails that read a key. */
export function guardrailsOf(key: string): string[] {
  return [...guardrailRules].filter(([, { keys }]) => keys.includes(key)).map(([name]) => name);
}
