import { ExitCode, RunnerError } from "../errors.ts";
import { type CheckedRecipe, checkRecipe } from "../recipe/check.ts";
import { type Diagnostic, displayPath, fileStart, formatDiagnostic, RecipeError } from "../recipe/diagnostic.ts";
import { explainKey, formatExplanation } from "../recipe/explain.ts";
import { readRecipe } from "../recipe/load.ts";
import { github, sarif } from "../recipe/report.ts";
import { writtenRecipe } from "../recipe/resolved-yaml.ts";

export interface CheckVerbOptions {
  format: "text" | "json" | "sarif" | "github";
  /** By dotted key. */
  flags: Record<string, string>;
  /** Of molt-runner. */
  version: string;
}

interface Checked {
  path: string;
  problems: Diagnostic[];
  /** Undefined where a problem is an error. */
  right?: CheckedRecipe;
}

/** Validates recipes and every file they name; starts nothing and executes nothing of the workspace. */
export async function checkCommand(paths: string[], { format, flags, version }: CheckVerbOptions): Promise<number> {
  const checked: Checked[] = [];
  for (const path of paths) checked.push(await checkFile(path, flags));
  const problems = checked.flatMap((recipe) => recipe.problems);
  if (format === "sarif") console.log(JSON.stringify(sarif(problems, version)));
  if (format === "github") for (const line of github(problems)) console.log(line);
  if (format === "json") for (const recipe of checked) console.log(JSON.stringify(checkedJson(recipe)));
  if (format === "text") printText(checked);
  return checked.every(({ right }) => right) ? ExitCode.done : ExitCode.usage;
}

export async function checkFile(path: string, flags: Record<string, string>): Promise<Checked> {
  try {
    const right = await checkRecipe(path, { flags, mode: "check" });
    return { path, right, problems: right.problems };
  } catch (error) {
    if (error instanceof RecipeError) return { path, problems: error.diagnostics };
    if (!(error instanceof RunnerError) || error.exitCode !== ExitCode.usage) throw error;
    const { advice: message, position: where } = error;
    return { path, problems: [{ severity: "error", code: "file", message, file: path, range: fileStart, where }] };
  }
}

/** What is right comes first; what is wrong becomes one error. */
function printText(checked: Checked[]): void {
  for (const { path, problems, right } of checked) {
    if (right === undefined) continue;
    for (const problem of problems) console.log(formatDiagnostic(problem));
    console.log(right.arithmetic.line);
    const isPlanned = problems.some(({ rule }) => rule === "planned");
    const next = isPlanned ? "not runnable yet: molt-runner plan" : `right: molt-runner ${right.verb}`;
    console.log(`${displayPath(path)} is ${next} ${displayPath(path)}`);
  }
  const wrong = checked.filter(({ right }) => !right).flatMap(({ problems }) => problems);
  if (wrong.length > 0) throw new RecipeError(wrong);
}

export function checkedJson({ path, problems, right }: Checked): object {
  if (right === undefined) return { path, ok: false, problems };
  const { verb, recipe, provenance, arithmetic } = right;
  return { path, ok: true, verb, recipe: writtenRecipe(recipe, provenance), problems, arithmetic };
}

/** Says of each recipe what it has for one key, and what is known of the key. */
export function explainCommand(paths: string[], key: string, { format, flags }: CheckVerbOptions): number {
  for (const path of paths) {
    const { recipe, provenance } = readRecipe(path, flags);
    const explained = explainKey(key, recipe, provenance);
    console.log(format === "json" ? JSON.stringify({ path, ...explained }) : formatExplanation(explained));
  }
  return ExitCode.done;
}
