import { isAbsolute, resolve } from "node:path";
import { inspect } from "node:util";
import { parse } from "yaml";
import type { RecipeKey } from "./schema.ts";
import { nearest } from "./suggest.ts";

export type Environment = Record<string, string | undefined>;

/** A value that fits its key, or why not and what it was probably meant to be. */
export type Checked = { value: unknown } | { problem: string; meant?: string };

/** `shown` stands for the value in what is said of it. */
export function checkValue({ key, type, schema, values }: RecipeKey, value: unknown, shown = value): Checked {
  const parsed = schema.safeParse(value);
  if (parsed.success) return { value: parsed.data };
  const meant = typeof shown === "string" ? nearest(shown, values) : undefined;
  const suggestion = meant === undefined ? "" : `: did you mean '${meant}'?`;
  return { problem: `${key} must be ${type}, not ${show(shown)}${suggestion}`, meant };
}

/** Text from a flag or the environment becomes what the same text would be in YAML; lists may go without brackets. */
export function parseText({ schema, default: example }: RecipeKey, text: string): unknown {
  const items = text.trim().startsWith("[") ? [] : text.split(",").map(parseScalar);
  if (items.length > 0 && Array.isArray(example)) return items;
  if (items.length > 1 && schema.safeParse(items).success) return items;
  const value = parseScalar(text);
  return schema.safeParse(value).success ? value : schema.safeParse(text).success ? text : value;
}

/** Null is written out: a variable that turns out empty, or `#x`, shall not mean it. */
function parseScalar(text: string): unknown {
  try {
    const value: unknown = parse(text.trim());
    return value === null && !/^(null|~)$/i.test(text.trim()) ? text : value;
  } catch {
    return text;
  }
}

const reference = /\$\{env:([^}]*)\}/g;

export function hasReference(value: unknown): value is string {
  return typeof value === "string" && value.search(reference) >= 0;
}

/** A path that begins as a shell would fill in, `~/a` or `$NAME/a`, as a recipe writes it; undefined for any other. */
export function asReference(path: string): string | undefined {
  const [all, home, braced, bare] = /^(~)(?=\/|$)|^\$\{(\w+)\}|^\$([A-Za-z_]\w*)/.exec(path) ?? [];
  return all && `\${env:${home ? "HOME" : (braced ?? bare)}}${path.slice(all.length)}`;
}

/** Fills in `${env:NAME}`; the names that are not set come back in `missing`. */
export function expand(text: string, environment: Environment): { text: string; missing: string[] } {
  const missing: string[] = [];
  const expanded = text.replace(reference, (_, name: string) => {
    const value = environment[name];
    if (value === undefined) missing.push(name);
    return value ?? "";
  });
  return { text: expanded, missing };
}

/** A path as the resolved recipe keeps it: absolute. `written` keeps its references to the environment. */
export function absolutePath(folder: string, expanded: string, written: string): { value: string; written: string } {
  const alone = isAbsolute(expanded) && !isAbsolute(written);
  return { value: resolve(folder, expanded), written: alone ? written : resolve(folder, written) };
}

function show(value: unknown): string {
  const text = typeof value === "string" ? `'${value}'` : inspect(value, { breakLength: Number.POSITIVE_INFINITY });
  return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}
