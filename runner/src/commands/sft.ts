import { conduct } from "../loop/conduct.ts";
import { sftRun } from "../loop/sft-run.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { RunSummary } from "../telemetry/summary.ts";
import type { VerbOptions } from "./options.ts";
import { openRun } from "./run.ts";

/** Trains on the replies of a dataset. */
export async function sftCommand(path: string, options: VerbOptions): Promise<number> {
  const { recipe, arithmetic, directory, log, begin } = await openRun(path, "sft", options);
  const model = displayPath(recipe.ckpt.output_dir ?? directory.export);
  const next = ({ state }: RunSummary) =>
    state === "completed" ? [`npx molt-runner serve --model ${model}`] : [`npx molt-runner sft ${path}`];
  return conduct({ recipe, directory, log, json: options.json, next }, (interrupted) => {
    begin();
    return sftRun({ recipe, arithmetic, directory, log, interrupted });
  });
}
