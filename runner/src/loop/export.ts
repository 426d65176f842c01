import { cpSync, existsSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { copyModelFiles } from "../data/model-folder.ts";
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
  for (const leftover of [aside, old]) rmSync(leftover, { recursive: true, force: true });
  mkdirSync(aside);
  try {
    await fill(aside);
    if (existsSync(target)) renameSync(target, old);
    renameSync(aside, target);
  } finally {
    for (const leftover of [aside, old]) rmSync(leftover, { recursive: true, force: true });
  }
}

/** True where a whole export lies. */
export function hasExport(directory: string): boolean {
  return existsSync(join(directory, "model.safetensors"));
}
