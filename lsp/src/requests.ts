/** What the extension asks the server beyond the protocol. Both sides import this. */
import type { Verb } from "../../runner/src/recipe/index.ts";

/** Client to server: the verb that the recipe at a file's URI is made for. Its text may be unsaved or on disk alone. */
export const verbRequest = "molt-runner/verb";

export interface VerbParams {
  uri: string;
}

export type VerbResult = Verb;
