import { isDeepStrictEqual } from "node:util";
import { isObject } from "../../data/config-json.ts";
import { type Json, none, readFlag, readSampling, readStreamOptions } from "../../engines/embedded/fields.ts";
import tables from "./request-fields.json" with { type: "json" };
import { WireError, type WireHost, type WireRequest } from "./types.ts";

/**
 * What becomes of a request field, and why. An `overridden` one is recorded: the recipe's sampling holds, so that what
 * is trained is what the policy samples. A `refused` one may ask for nothing: null, nothing in it, or `neutral`.
 */
export type FieldUse = "mapped" | "overridden" | "ignored" | "refused";
export type FieldRule = [use: FieldUse, why: string, neutral?: unknown[]];
export type WireName = keyof typeof tables;

/**
 * Of each wire every field; `others` is for any that is not there. docs/wires.md is made from them. What `engine` has
 * goes before those of a text wire where the embedded engine is asked, which also has tables for vLLM's own routes.
 */
export const requestFields = tables as unknown as Record<WireName, Record<string, FieldRule>>;

/** The fields that are mapped, and the names of those overridden. Throws for one that is refused. */
export function readFields(value: Json, rules: Record<string, FieldRule>, prefix = "") {
  const body: Json = {};
  const overridden: string[] = [];
  for (const [name, item] of Object.entries(value)) {
    const [use, why, neutral = []] = Object.hasOwn(rules, name) ? rules[name]! : rules.others!;
    const asksNothing = none(item) || neutral.some((one) => isDeepStrictEqual(one, item));
    if (use === "mapped" && item !== null) body[name] = item;
    if (use === "overridden" && !asksNothing) overridden.push(name);
    if (use === "refused" && !asksNothing) {
      throw new WireError(400, `${prefix}${name} is not supported: ${why}.`, `${prefix}${name}`);
    }
  }
  return { body, overridden };
}

/** The fields that are mapped, and of the request what all wires say alike. Throws for a field that is refused. */
export function readRequest(value: unknown, wire: WireName, host: WireHost = "gateway") {
  if (!isObject(value)) throw new WireError(400, "The body must be a JSON object.");
  const rules = host === "engine" ? { ...requestFields[wire], ...requestFields.engine } : requestFields[wire];
  const { body, overridden } = readFields(value, rules);
  const max_tokens = body.max_completion_tokens ?? body.max_output_tokens ?? body.max_tokens;
  const limits = readSampling({ ...body, max_tokens, stop: body.stop ?? body.stop_sequences }, "", []);
  const request: WireRequest = {
    ...readStreamOptions(body),
    model: readString(body.model ?? "", "model"),
    messages: [],
    prompt: null,
    tools: [],
    toolChoice: readToolChoice(body.tool_choice),
    n: limits.n,
    maxTokens: limits.maxTokens,
    stop: limits.stop,
    stopTokenIds: [...limits.stopReasons],
    seed: limits.seed,
    logprobs: false,
    returnTokenIds: readFlag(body, "return_token_ids", false),
    showReasoning: true,
    overridden,
  };
  return { body, request };
}

/** OpenAI's word, or Anthropic's object with a `type`. */
function readToolChoice(value: unknown): "auto" | "none" {
  const choice = isObject(value) ? value.type : (value ?? "auto");
  if (choice === "auto" || choice === "none") return choice;
  throw new WireError(400, "tool_choice must be auto or none: a forced call would not be sampled.", "tool_choice");
}

/** With `least`, named for the error, at least one. */
export function readList(value: unknown, where: string, least?: string): Json[] {
  if (Array.isArray(value) && value.every(isObject) && (!least || value.length > 0)) return value;
  throw wrong(where, `must be a list of ${least ? `at least one ${least}` : "objects"}`);
}

/** Token ids; whether the model has them, the engine says. */
export function readIds(value: unknown, where: string, or = ""): number[] {
  const isId = (id: unknown) => Number.isSafeInteger(id) && (id as number) >= 0;
  if (Array.isArray(value) && value.length > 0 && value.every(isId)) return value;
  throw wrong(where, `must be ${or}a list of token ids, at least one`);
}

export function readString(value: unknown, where: string): string {
  if (typeof value === "string") return value;
  throw wrong(where, "must be a string");
}

export function wrong(where: string, what: string): WireError {
  return new WireError(400, `${where} ${what}.`, where);
}
