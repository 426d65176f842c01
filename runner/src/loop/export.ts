import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { copyModelFiles } from "../data/model-folder.ts";
import { syncPath } from "../files.ts";
import type { RankGroup } from "../trainer/handle.ts";

/** Writes the policy as a Hugging Face folder: aside first, then in place of what was there. */
export async function exportModel(ranks: RankGroup, source: string, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => {
    copyModelFiles(source, aside);
    await ranks.all("exportWeights", { directory: aside });
  });
}

/** A copy of an export elsewhere (`ckpt.output_dir`). */
export async function copyExport(source: string, target: string): Promise<void> {
  await replaceDirectory(target, async (aside) => cpSync(source, aside, { recursive: true }));
}

async function replaceDirectory(target: string, fill: (aside: string) => Promise<void>): Promise<void> {
  const aside = `${target}.part`;
  const old = `${target}.old`;
  mkdirSync(dirname(target), { recursive: true });
  takeBack(old, target);
  for (const leftover of [aside, old]) rmSync(leftover, { recursive: true, force: true });
  mkdirSync(aside);
  try {
    await fill(aside);
    for (const file of [...readdirSync(aside), "."]) syncPath(join(aside, file));
    if (existsSync(target)) renameSync(target, old);
    renameSync(aside, target);
    syncPath(dirname(target));
  } finally {
    takeBack(old, target);
    for (const leftover of [aside, old]) rmSync(leftover, { recursive: true, force: true });
  }
}

/** What was there is moved away for a moment only: nobody is left with neither. */
function takeBack(old: string, target: string): void {
  if (existsSync(old) && !existsSync(target)) renameSync(old, target);
}

/** True where a whole export lies. */
export function hasExport(directory: string): boolean {
  return existsSync(join(directory, "model.safetensors"));
}
