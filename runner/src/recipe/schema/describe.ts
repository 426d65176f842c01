import { z } from "zod";
import type { KeyMeta } from "./key.ts";

/** What is read of a JSON schema. */
export interface JsonType {
  type?: string | string[];
  enum?: string[];
  const?: unknown;
  anyOf?: JsonType[];
  prefixItems?: JsonType[];
  items?: JsonType;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  pattern?: string;
}

/** What a value must be, in words, and the values to choose from where they can be counted. */
export function describeType(schema: z.ZodType, meta: KeyMeta): { type: string; values: string[] } {
  const { type: types, ...json } = z.toJSONSchema(schema, { io: "input" }) as JsonType;
  const options = [types].flat().map((type): JsonType => ({ ...json, type }));
  const isPath = meta.path !== undefined || meta.file === true;
  return { type: options.map((one) => inWords(one, isPath)).join(" or "), values: options.flatMap(choices) };
}

function inWords(json: JsonType, isPath: boolean): string {
  if (json.anyOf) return json.anyOf.map((option) => inWords(option, isPath)).join(" or ");
  if (json.const !== undefined) return String(json.const);
  if (json.enum) return json.enum.length === 1 ? json.enum[0]! : `one of ${json.enum.join(", ")}`;
  if (json.prefixItems)
    return `a list of ${json.prefixItems.length}: ${json.prefixItems.map((item) => inWords(item, isPath)).join(", ")}`;
  if (json.items) return `a list of ${inWords(json.items, isPath).replace(/^an? (\w+)/, "$1s")}`;
  if (json.type === "boolean") return "true or false";
  if (json.type === "null") return "null";
  if (json.type === "string") return isPath ? "a path" : `text${json.pattern ? ` matching ${json.pattern}` : ""}`;
  return `${json.type === "integer" ? "an integer" : "a number"}${bounds(json)}`;
}

function bounds({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: JsonType): string {
  // An integer's own limits are no bound.
  const bound = (words: string, value: number | undefined) =>
    value === undefined || Math.abs(value) === Number.MAX_SAFE_INTEGER ? [] : [`${words} ${value}`];
  const low = [...bound("above", exclusiveMinimum), ...bound("of at least", minimum)];
  const parts = [...low, ...bound("below", exclusiveMaximum), ...bound("of at most", maximum)];
  return parts.length > 0 ? ` ${parts.join(" and ")}` : "";
}

function choices(json: JsonType): string[] {
  if (json.anyOf) return json.anyOf.flatMap(choices);
  if (json.type === "boolean") return ["true", "false"];
  return json.type === "null" ? ["null"] : (json.enum ?? []);
}
