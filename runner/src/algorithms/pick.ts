import { usageError } from "../errors.ts";

/** Or an error that names the recipe key and the entries. */
export function pick<T>(registry: Record<string, T>, name: string, key: string): T {
  if (Object.hasOwn(registry, name)) return registry[name]!;
  throw usageError(`${key}: no entry '${name}'`, { fix: `take one of ${Object.keys(registry).join(", ")}` });
}
