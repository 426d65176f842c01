/** Values of a Hugging Face `config.json`, refused with the file's name where they are not what they must be. */
import { usageError } from "../errors.ts";

export type Config = Record<string, unknown>;

export function positive(
  config: Config,
  key: string,
  file: string,
  holds: (value: number) => boolean = Number.isFinite,
) {
  const value = config[key];
  if (typeof value === "number" && holds(value) && value > 0) return value;
  const found = value === undefined || value === null ? "is missing" : `is ${JSON.stringify(value)}`;
  const wanted = holds === Number.isInteger ? "a positive integer" : "a positive number";
  throw usageError(`${key} ${found}; it must be ${wanted}`, { position: { file } });
}

export function unsupported(what: string, instead: string, file: string): never {
  throw usageError(`${what}, which is not supported: ${instead}`, { position: { file }, fix: "take another model" });
}
