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
  /** A value that begins with ./ or ../ is a file, taken relative to the recipe's folder, in place of a name. */
  file?: true;
  /** In words, where the value comes from when nobody gives one and it has no constant default. */
  derived?: string;
  /** Names of the metrics that the key moves most. */
  metrics?: string[];
  /** Only `plan` reads the key so far: a run takes no other value than the default. */
  planned?: true;
}

type More = Omit<KeyMeta, "description">;

/** A key with a default; `description` is one sentence. */
export function key<T extends z.ZodType>(type: T, usual: z.output<T>, description: string, more?: More) {
  return type.default(usual as never).meta({ description, ...more });
}

/** A key that may be null, as it is by default. */
export function optionalKey<T extends z.ZodType>(type: T, description: string, more?: More) {
  return key(type.nullable(), null, description, more);
}

/** A key that only `plan` reads so far. */
export function plannedKey<T extends z.ZodType>(type: T, usual: z.output<T>, description: string, more?: More) {
  return key(type, usual, description, { ...more, planned: true });
}

/** A key without a default: required, unless `more.derived` says where its value comes from. */
export function keyWithoutDefault<T extends z.ZodType>(type: T, description: string, more?: More): T {
  return type.meta({ description, ...more });
}

export function section<T extends z.ZodRawShape>(description: string, shape: T) {
  return z.strictObject(shape).meta({ description });
}

/** An entry of a registry, or a file whose default export is one. */
export const nameOrFile = (names: string[]) => z.union([z.enum(names), z.string().regex(/[/\\].*\.[cm]?[jt]s$/)]);

export const path = z.string().min(1);
export const files = z.union([path, z.array(path).min(1)]);
export const positiveInteger = z.int().min(1);
/** Steps between, or -1 for none. */
export const cadence = z.union([z.literal(-1), positiveInteger]);
export const fraction = z.number().min(0).max(1);
export const positiveNumber = z.number().gt(0);
