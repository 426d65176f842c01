import { inferVerbOfText, type Verb } from "../../../runner/src/recipe/index.ts";
import type { Document, ReadFile } from "./diagnostics.ts";

/** The verb that the recipe is made for, parents included: how the runner is asked to run it. */
export function verb({ path, text }: Pick<Document, "path" | "text">, readFile: ReadFile): Verb {
  return inferVerbOfText(text, path, { readFile });
}
