import { readFileSync } from "node:fs";
import { fileError, messageOf } from "../errors.ts";

export type Config = Record<string, unknown>;

export function isObject(value: unknown): value is Config {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function readConfig(file: string): Config {
  try {
    const value = JSON.parse(readFileSync(file, "utf8"));
    if (!isObject(value)) throw new Error("not an object");
    return value;
  } catch (error) {
    throw fileError(file, `this file is not a JSON object: ${messageOf(error)}`);
  }
}

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
  throw fileError(file, `${key} ${found}; it must be ${wanted}`);
}

export function unsupported(what: string, instead: string, file: string): never {
  throw fileError(file, `${what}, which is not supported: ${instead}`, "take another model");
}
