import { ExitCode } from "../errors.ts";
import { formatDiagnostic, RecipeError } from "../recipe/diagnostic.ts";
import { disk, inferVerb, readRecipe } from "../recipe/load.ts";
import { planRecipe, planTable, readPolicyShape } from "../recipe/planner/index.ts";
import type { VerbOptions } from "./options.ts";

/**
 * Says what a recipe needs and how long a step takes, from it and its model's config.json alone; starts nothing. What
 * its devices cannot hold is refused after the plan.
 */
export async function planCommand(path: string, { json, flags }: VerbOptions): Promise<number> {
  const { plan, fits, problems, table } = planFile(path, flags);
  if (json) console.log(JSON.stringify({ ok: fits, ...plan, problems }));
  else {
    console.log(table);
    if (!fits) throw new RecipeError(problems);
    for (const problem of problems) console.log(formatDiagnostic(problem));
  }
  return fits ? ExitCode.done : ExitCode.usage;
}

/** The plan of a recipe that is right, whether it fits its devices, and what is wrong or worth knowing. */
export function planFile(path: string, flags: Record<string, string>) {
  const resolution = readRecipe(path, flags);
  const { recipe } = resolution;
  const verb = inferVerb(recipe);
  const found = resolution.judge(verb);
  if (found.some(({ severity }) => severity === "error")) throw new RecipeError(found);
  const plan = planRecipe(recipe, readPolicyShape(recipe, path, disk.readFile), { rows: null, verb });
  const planned = plan.findings.map((finding) => resolution.diagnosticOf(finding));
  const fits = planned.every(({ severity }) => severity !== "error");
  // That only `plan` reads a key is no news here.
  const problems = [...found.filter(({ rule }) => rule !== "planned"), ...planned];
  const guess = recipe.data.mean_len === null ? "\n  (a guess: set data.mean_len to the mean row that you see)" : "";
  return { plan, fits, problems, table: planTable(plan) + guess };
}
