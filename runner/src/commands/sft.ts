import { conduct } from "../loop/conduct.ts";
import { sftFrom } from "../loop/sft-run.ts";
import { trainRun } from "../loop/train-run.ts";
import type { VerbOptions } from "./options.ts";
import { nextCommands, openRun } from "./run.ts";

/** Trains on the replies of a dataset. */
export async function sftCommand(path: string, options: VerbOptions): Promise<number> {
  const { recipe, arithmetic, directory, log, begin } = await openRun(path, "sft", options);
  const next = nextCommands(directory, null);
  return conduct({ recipe, directory, log, json: options.json, next }, (interrupted) => {
    begin();
    return trainRun({ recipe, arithmetic, directory, log, interrupted, checkpoint: null }, sftFrom);
  });
}
