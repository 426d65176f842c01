/** Nothing is written in place: aside first, fsynced, renamed. A reader finds the old file or the new one. */
import { closeSync, fsyncSync, openSync, renameSync, writeFileSync } from "node:fs";
import { open, rename } from "node:fs/promises";

export function replaceFile(path: string, data: string | Uint8Array): void {
  const aside = `${path}.part`;
  writeSynced(aside, data);
  renameSync(aside, path);
}

/** The same without holding the event loop. */
export async function replaceFileAsync(path: string, data: Uint8Array): Promise<void> {
  const aside = `${path}.part`;
  const file = await open(aside, "w");
  try {
    await file.writeFile(data);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(aside, path);
}

export function writeSynced(path: string, data: string | Uint8Array): void {
  const file = openSync(path, "w");
  try {
    writeFileSync(file, data);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/** A file's bytes, or a directory's names, are on the disk from now on. */
export function syncPath(path: string): void {
  const handle = openSync(path, "r");
  try {
    fsyncSync(handle);
  } finally {
    closeSync(handle);
  }
}
