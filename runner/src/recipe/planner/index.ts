import { basename, join } from "node:path";
import { arithmetic } from "../arithmetic.ts";
import { findExporter } from "../exporter.ts";
import type { Verb } from "../guardrails/index.ts";
import { readRecipe } from "../load.ts";
import type { Recipe } from "../schema.ts";
import { findingsOf } from "./findings.ts";
import { layoutOf } from "./layout.ts";
import { engineMemory, trainerMemory } from "./memory.ts";
import { nodeRows, placementLine, placementOf } from "./placement.ts";
import { type ModelShape, type ReadFile, readModelShape } from "./shape.ts";
import { stepTime } from "./time.ts";

export { type ModelShape, type ReadFile, readModelShape } from "./shape.ts";
export { planTable } from "./table.ts";

/** What a recipe comes to before anything is started: bytes, seconds and tokens, estimated but for the arithmetic. */
export type Plan = ReturnType<typeof planRecipe>;

/**
 * Pure. A recipe that does not fit its devices gets a plan all the same, whose findings say so. `rows` is the dataset's
 * number, null where it was not read.
 */
export function planRecipe(recipe: Recipe, model: ModelShape, { rows, verb }: { rows: number | null; verb: Verb }) {
  const layout = layoutOf(recipe, model, verb);
  const trainer = layout.ranks > 0 ? trainerMemory(recipe, model, layout) : null;
  const placement = placementOf(recipe, verb);
  const engine = layout.engines.count > 0 ? engineMemory(recipe, model, layout) : null;
  const time = stepTime(recipe, model, layout, engine);
  return {
    verb,
    /** Of the policy's folder. */
    name: basename(recipe.actor.model_name_or_path),
    model,
    layout,
    arithmetic: arithmetic(recipe, verb, rows),
    /** On each device of the trainer; null where nothing is trained. */
    trainer,
    /** On each device of an engine; null where nothing is sampled. */
    engine,
    time,
    /** What runs, in words. */
    placement: placementLine(recipe, placement),
    nodes: nodeRows(placement),
    /** What is wrong, in the shape of what guardrails find. */
    findings: findingsOf(recipe, model, verb, time.tokenSeconds),
  };
}

/** The policy of the recipe in `file`: of a folder that another will export, the model which that one starts from. */
export function readPolicyShape({ actor, ref }: Recipe, file: string, readFile: ReadFile): ModelShape {
  const read = (folder: string) => {
    const isThere = readFile(join(folder, "config.json")) !== undefined;
    const exporter = isThere ? undefined : findExporter(folder, file);
    return readModelShape(exporter ? readRecipe(exporter.file, {}).recipe.actor.model_name_or_path : folder, readFile);
  };
  const other = ref.model_name_or_path;
  const shape = read(actor.model_name_or_path);
  return other === null ? shape : { ...shape, reference: read(other).parameters.total };
}
