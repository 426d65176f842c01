import { conduct } from "../loop/conduct.ts";
import { sftRun } from "../loop/sft-run.ts";
import { openRun } from "./run.ts";

/** Trains on the replies of a dataset. */
export async function sftCommand(
  path: string,
  options: { json: boolean; flags: Record<string, string> },
): Promise<number> {
  const { recipe, arithmetic, directory, log, begin } = await openRun(path, "sft", options);
  const next = () => [`molt-runner serve --model ${recipe.ckpt.output_dir ?? directory.export}`];
  return conduct({ directory, log, json: options.json, next }, (interrupted) => {
    begin();
    return sftRun({ recipe, arithmetic, directory, log, interrupted });
  });
}
