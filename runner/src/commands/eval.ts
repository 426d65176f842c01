import { ExitCode } from "../errors.ts";
import { evaluate } from "../loop/evaluate.ts";
import { evalProfiles, readEvalRows, startSampling, stopSampling } from "../loop/parts.ts";
import { checkRecipe } from "../recipe/check.ts";
import { readPolicyFolder } from "../trainer/specs.ts";
import type { VerbOptions } from "./options.ts";
import { requireAddon } from "./setup.ts";

/** Evaluates the recipe's model on its held-out rows; trains nothing and writes nothing. */
export async function evalCommand(path: string, { json, flags }: VerbOptions): Promise<number> {
  const { recipe } = await checkRecipe(path, { flags, verb: "eval", mode: "launch" });
  await requireAddon();
  // Nothing trains: all evaluate.
  recipe.eval.engines = 0;
  const folder = readPolicyFolder(recipe);
  const rows = (await readEvalRows(recipe))!;
  const interrupt = new AbortController();
  process.once("SIGINT", () => interrupt.abort()).once("SIGTERM", () => interrupt.abort());
  const sampling = await startSampling(recipe, folder, "eval", recipe.actor.init, (event) => {
    if ("message" in event && event.message) console.error(event.message);
  });
  try {
    const work = evaluate(rows, evalProfiles(recipe), sampling.agents, "eval", interrupt.signal);
    const metrics = await Promise.race([work, sampling.fleet.died]);
    if (interrupt.signal.aborted) return ExitCode.interrupted;
    const lines = Object.entries(metrics).map(([name, value]) => `${name} ${value}`);
    console.log(json ? JSON.stringify({ model: folder.path, metrics }) : lines.join("\n"));
    return ExitCode.done;
  } finally {
    await stopSampling(sampling);
  }
}
