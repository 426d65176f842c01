import { isAbsolute } from "node:path";
import { atUserLine, importUserFile } from "../agents/bundle.ts";
import { usageError } from "../errors.ts";

/** A registry's entry, or the function that a recipe's file exports by default; what that throws names its line. */
export async function loadAlgorithm<F extends (...args: never[]) => unknown>(
  registry: Record<string, F>,
  name: string,
  key: string,
): Promise<F> {
  if (Object.hasOwn(registry, name)) return registry[name]!;
  const names = Object.keys(registry).join(", ");
  if (!isAbsolute(name)) throw usageError(`${key}: no entry '${name}'`, { fix: `take one of ${names}` });
  const { default: algorithm } = await importUserFile(name, key);
  if (typeof algorithm !== "function") {
    throw usageError(`${key}: the default export must be a function`, { position: { file: name } });
  }
  return ((...args) => {
    try {
      const given = algorithm(...args);
      // Refused for its shape; what it would reject with comes later.
      if (given instanceof Promise) given.catch(() => {});
      return given;
    } catch (error) {
      throw atUserLine(error, name, key);
    }
  }) as F;
}
