import { sftFrom } from "../loop/sft-run.ts";
import type { VerbOptions } from "./options.ts";
import { conductRun } from "./run.ts";

/** Trains on the replies of a dataset. */
export function sftCommand(path: string, options: VerbOptions): Promise<number> {
  return conductRun(path, "sft", options, sftFrom);
}
