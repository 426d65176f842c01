import { z } from "zod";
import { actor } from "./schema/actor.ts";
import { algo } from "./schema/algo.ts";
import { ckpt } from "./schema/ckpt.ts";
import { critic } from "./schema/critic.ts";
import { data } from "./schema/data.ts";
import { describeType } from "./schema/describe.ts";
import { engine } from "./schema/engine.ts";
import { evaluation } from "./schema/eval.ts";
import { fsdp } from "./schema/fsdp.ts";
import type { KeyMeta } from "./schema/key.ts";
import { launcher } from "./schema/launcher.ts";
import { logger } from "./schema/logger.ts";
import { ref } from "./schema/ref.ts";
import { reward } from "./schema/reward.ts";
import { rollout } from "./schema/rollout.ts";
import { run } from "./schema/run.ts";
import { train } from "./schema/train.ts";
import { vllm } from "./schema/vllm.ts";

export const recipeSchema = z.strictObject({
  run,
  actor,
  ref,
  critic,
  fsdp,
  data,
  rollout,
  train,
  algo,
  reward,
  engine,
  vllm,
  eval: evaluation,
  ckpt,
  launcher,
  logger,
});

/** Goes up when a key changes its meaning; one that is only new keeps it. */
export const recipeVersion = 1;

/** A recipe with every value decided. Paths are absolute. */
export type Recipe = z.output<typeof recipeSchema>;

/** One key of a recipe, `actor.adam.lr`, as validation, flags, hovers and documentation need it. */
export interface RecipeKey extends KeyMeta {
  /** Dotted; also the flag, after `--`. */
  key: string;
  /** What a value must be, in words: "a number above 0". */
  type: string;
  /** Undefined where the value is required or derived. */
  default: unknown;
  required: boolean;
  /** Values of an enumeration, and true and false. */
  values: string[];
  /** Checks one value that was given. */
  schema: z.ZodType;
}

/** Every key in the schema's order. */
export const recipeKeys = new Map<string, RecipeKey>();
/** Every section by dotted name, nested ones too. */
export const recipeSections = new Map<string, { key: string; description: string }>();

function register(parent: string, shape: z.ZodRawShape): void {
  for (const [name, node] of Object.entries(shape) as [string, z.ZodType][]) {
    const key = parent ? `${parent}.${name}` : name;
    if (node instanceof z.ZodObject) {
      recipeSections.set(key, { key, description: String(node.meta()?.description) });
      register(key, node.shape);
    } else {
      recipeKeys.set(key, describeKey(key, node));
    }
  }
}

function describeKey(key: string, node: z.ZodType): RecipeKey {
  const meta = node.meta() as unknown as KeyMeta;
  const schema = node instanceof z.ZodDefault ? (node.unwrap() as z.ZodType) : node;
  const value: unknown = node instanceof z.ZodDefault ? node.def.defaultValue : undefined;
  return {
    ...meta,
    key,
    ...describeType(schema, meta),
    default: value,
    required: value === undefined && meta.derived === undefined,
    schema,
  };
}

register("", recipeSchema.shape);

/** The value of a dotted key. */
export function valueAt(recipe: Recipe, key: string): unknown {
  return key.split(".").reduce<unknown>((value, name) => (value as Record<string, unknown>)[name], recipe);
}

/** `[["a.b", 1]]` to `{ a: { b: 1 } }`. */
export function nest(values: (readonly [string, unknown])[]): unknown {
  const root: Record<string, unknown> = {};
  for (const [key, value] of values) {
    const names = key.split(".");
    const leaf = names.pop()!;
    let section = root;
    for (const name of names) {
      section[name] ??= {};
      section = section[name] as Record<string, unknown>;
    }
    section[leaf] = value;
  }
  return root;
}

/** JSON Schema of a recipe file. Nothing is required in it, since a parent recipe or a flag may give any key. */
export function recipeJsonSchema(): Record<string, unknown> {
  const parent = z.string().min(1).optional().meta({ description: "Recipe whose values this one starts from." });
  return z.toJSONSchema(z.strictObject({ extends: parent, ...recipeSchema.shape }), {
    io: "input",
    override: ({ jsonSchema }) => {
      delete jsonSchema.required;
    },
  });
}
