import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { adapterConfig } from "../data/adapters.ts";
import { copyModelFiles } from "../data/model-folder.ts";
import { syncPath } from "../files.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { Recipe } from "../recipe/index.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { readPolicyFolder } from "../trainer/specs.ts";
import type { Checkpoint } from "./checkpoint.ts";
import { startRanks } from "./parts.ts";
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

/** A checkpoint's weights, as a Hugging Face folder; or its adapters alone, as one of peft's. */
export async function exportCheckpoint(
  recipe: Recipe,
  { directory }: Checkpoint,
  target: string,
  onlyAdapters = false,
): Promise<void> {
  const folder = readPolicyFolder(recipe);
  const ranks = await startRanks(recipe, folder, recipe.actor.devices_per_node);
  try {
    await ranks.all("loadCheckpoint", { directory });
    await (onlyAdapters ? exportAdapters(ranks, recipe, target) : exportModel(ranks, folder.path, target));
  } finally {
    await ranks.stop();
  }
}

/** As a Hugging Face folder: aside first, then in place of what was there. */
export async function exportModel(ranks: RankGroup, source: string, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => {
    copyModelFiles(source, aside);
    await ranks.all("exportWeights", { directory: aside });
  });
}

async function exportAdapters(ranks: RankGroup, recipe: Recipe, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => {
    writeFileSync(join(aside, "adapter_config.json"), `${JSON.stringify(adapterConfig(recipe), null, 2)}\n`);
    await ranks.all("exportAdapters", { directory: aside });
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
