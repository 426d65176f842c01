import type { Arithmetic, Recipe } from "../recipe/index.ts";
import type { EventLog } from "../telemetry/log.ts";
import type { RunDirectory } from "./run-directory.ts";

export interface RunOptions {
  recipe: Recipe;
  arithmetic: Arithmetic;
  directory: RunDirectory;
  log: EventLog;
  interrupted: AbortSignal;
}
