import { dirname, resolve } from "node:path";
import { filesBelow } from "../files.ts";
import { disk, inferVerb } from "./load.ts";
import { Resolution } from "./resolve.ts";

const maxDepth = 3;

/** The recipe beside or below `recipeFile` whose `ckpt.output_dir` is `folder`. */
export function findExporter(folder: string, recipeFile: string) {
  for (const file of filesBelow(dirname(resolve(recipeFile)), /\.ya?ml$/, maxDepth)) {
    if (file === resolve(recipeFile)) continue;
    const { recipe } = new Resolution(disk.readFile(file) ?? "", file, {}, disk);
    if (recipe.ckpt.output_dir === folder) return { file, verb: inferVerb(recipe) };
  }
  return undefined;
}
