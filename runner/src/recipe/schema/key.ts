import { z } from "zod";

/** What a key says about itself beside its type; hovers, completion and documentation read it. */
export interface KeyMeta {
  /** One sentence. */
  description: string;
  unit?: string;
  /** The value is a path, taken relative to the recipe's folder or to the working directory. */
  path?: "recipe" | "working directory";
  /** The value is a command's words, of which those that begin with ./ or ../ are taken relative to the recipe. */
  command?: true;
  /** In words, where the value comes from when nobody gives one and it has no constant default. */
  derived?: string;
  /** Names of the metrics that the key moves most. */
  metrics?: string[];
  /** Only `plan` reads the key so far: a run takes no other value than the default. */
  planned?: true;
  /** The values that only `plan` knows so far, of a key that a run reads. */
  plannedValues?: string[];
}

/** A key with a default. */
export function key<T extends z.ZodType>(type: T, defaultValue: z.output<T>, meta: KeyMeta) {
  return type.default(defaultValue as never).meta({ ...meta });
}

/** A key that only `plan` reads so far. */
export function plannedKey<T extends z.ZodType>(type: T, defaultValue: z.output<T>, meta: KeyMeta) {
  return key(type, defaultValue, { ...meta, planned: true });
}

/** A key without a default: required, unless `meta.derived` says where its value comes from. */
export function keyWithoutDefault<T extends z.ZodType>(type: T, meta: KeyMeta): T {
  return type.meta({ ...meta });
}

export function section<T extends z.ZodRawShape>(description: string, shape: T) {
  return z.strictObject(shape).meta({ description });
}

export const path = z.string().min(1);
export const positiveInteger = z.int().min(1);
export const fraction = z.number().min(0).max(1);
export const positiveNumber = z.number().gt(0);
