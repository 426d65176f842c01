import { usageError } from "../errors.ts";

/** An entry of a registry, or an error that names the recipe key and the entries there are. */
export function pick<T>(registry: Record<string, T>, name: string, key: string): T {
  if (Object.hasOwn(registry, name)) return registry[name]!;
  throw usageError(`${key}: no entry '${name}'`, { fix: `take one of ${Object.keys(registry).join(", ")}` });
}
