import type { ValidateFunction } from "ajv";
import { RolloutFailure } from "../rollout.ts";

/** What a reply says after its thoughts, without blanks at its ends. */
export function spoken(text: string): string {
  return text.replace(/^.*<\/think>/s, "").trim();
}

/** A row without a label is no fault of the policy. */
export function labelText(label: unknown): string {
  if (typeof label === "string" || typeof label === "number") return String(label).trim();
  const said = label === undefined ? "missing" : `neither a text nor a number: ${JSON.stringify(label)}`;
  throw new RolloutFailure("reward", `the row's label (data.label_key) is ${said}`);
}

/** 1 where the reply is the label, blanks at its ends aside, else 0. */
export function exactMatch() {
  return (text: string, label: unknown): number => Number(spoken(text) === labelText(label));
}

/** 1 where the pattern is in the reply, else 0. The last find's first group, where there is one, must be the label. */
export function regexMatch(pattern: RegExp) {
  const all = new RegExp(pattern, `${pattern.flags.replace(/[gy]/g, "")}g`);
  return (text: string, label: unknown): number => {
    const found = [...spoken(text).matchAll(all)].at(-1);
    return Number(found?.length === 1 || (found !== undefined && found[1] === labelText(label)));
  };
}

/** 1 where the reply, or the last fenced block in it, is JSON that the schema (draft-07) allows, else 0. */
export function jsonSchemaMatch(schema: object) {
  let validate: ValidateFunction | undefined;
  return async (text: string): Promise<number> => {
    const { Ajv } = await import("ajv");
    validate ??= new Ajv({ strict: false }).compile(schema);
    const said = spoken(text);
    // Text, block, text, … An open block at the end is none.
    const parts = said.split(/^```\w*$/m);
    try {
      return Number(validate(JSON.parse(parts.at(parts.length % 2 ? -2 : -3) ?? said)));
    } catch {
      return 0; // no JSON, or nested deeper than can be looked through
    }
  };
}
