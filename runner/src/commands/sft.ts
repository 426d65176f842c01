import type { VerbOptions } from "./options.ts";
import { trainNew } from "./run.ts";

/** Trains on the replies of a dataset. */
export const sftCommand = (path: string, options: VerbOptions) => trainNew(path, "sft", options);
