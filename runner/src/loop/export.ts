import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { copyModelFiles } from "../data/model-folder.ts";
import { syncPath } from "../files.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { phase } from "./phase.ts";
import type { RunOptions } from "./run-options.ts";

/** The model trained from `source`, and a copy where the recipe wants one. */
export function exportRun({ recipe, directory, log }: RunOptions, ranks: RankGroup, source: string): Promise<void> {
  const target = directory.export;
  const write = async () => {
    await exportModel(ranks, source, target);
    if (recipe.ckpt.output_dir) await copyExport(target, recipe.ckpt.output_dir);
  };
  return phase(log, "export", write, () => displayPath(target));
}

/** As a Hugging Face folder: aside first, then in place of what was there. */
export async function exportModel(ranks: RankGroup, source: string, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => {
    copyModelFiles(source, aside);
    await ranks.all("exportWeights", { directory: aside });
  });
}

export async function copyExport(source: string, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => cpSync(source, aside, { recursive: true }));
}

async function replaceDirectory(target: string, fill: (aside: string) => Promise<void>): Promise<void> {
  const aside = `${target}.part`;
  const old = `${target}.old`;
  const tidy = () => {
    // What was there moves only for a moment: nobody is left with neither.
    if (existsSync(old) && !existsSync(target)) renameSync(old, target);
    for (const leftover of [aside, old]) rmSync(leftover, { recursive: true, force: true });
  };
  mkdirSync(dirname(target), { recursive: true });
  tidy();
  mkdirSync(aside);
  try {
    await fill(aside);
    for (const file of [...readdirSync(aside), "."]) syncPath(join(aside, file));
    if (existsSync(target)) renameSync(target, old);
    renameSync(aside, target);
    syncPath(dirname(target));
  } finally {
    tidy();
  }
}

export function hasExport(directory: string): boolean {
  return existsSync(join(directory, "model.safetensors"));
}
