import { ExitCode } from "../errors.ts";
import { checkRecipe } from "../recipe/check.ts";
import { displayPath, formatDiagnostic } from "../recipe/diagnostic.ts";
import type { VerbOptions } from "./options.ts";

/** Validates a recipe and every file it names; starts nothing and executes nothing of the workspace. */
export async function checkCommand(path: string, { json, flags }: VerbOptions): Promise<number> {
  const { recipe, verb, problems, arithmetic } = await checkRecipe(path, { flags, mode: "check" });
  if (json) {
    console.log(JSON.stringify({ ok: true, verb, recipe, problems, arithmetic }));
    return ExitCode.done;
  }
  for (const problem of problems) console.log(formatDiagnostic(problem));
  console.log(arithmetic.line);
  console.log(`${displayPath(path)} is right: molt-runner ${verb} ${displayPath(path)}`);
  return ExitCode.done;
}
