/** Nothing is written in place: aside first, fsynced, renamed. A reader finds the old file or the new one. */
import { createHash, randomBytes } from "node:crypto";
import {
  closeSync,
  type Dirent,
  fsyncSync,
  openSync,
  readdirSync,
  renameSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";

export const sha256 = (data: string | Uint8Array): string => createHash("sha256").update(data).digest("hex");

/** `mode`: who may read a file that is new. */
export function replaceFile(path: string, data: string | Uint8Array, mode?: number): void {
  const aside = `${path}.part`;
  writeSynced(aside, data, mode);
  renameSync(aside, path);
}

export function writeSynced(path: string, data: string | Uint8Array, mode?: number): void {
  const file = openSync(path, "w", mode);
  try {
    writeFileSync(file, data);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/** A file in `folder` that no name leads to, but `path` in this process: it goes with it, however that ends. Linux. */
export async function namelessFile(folder: string): Promise<{ handle: FileHandle; path: string }> {
  const name = join(folder, `molt-${process.pid}-${randomBytes(4).toString("hex")}`);
  // At once: whoever is killed in between leaves it.
  const file = openSync(name, "wx+");
  unlinkSync(name);
  try {
    const handle = await open(`/proc/self/fd/${file}`, "r+");
    return { handle, path: `/proc/self/fd/${handle.fd}` };
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

/** A folder that holds more is not looked through to its end. */
const mostEntries = 20_000;
const skipped = /^(\..*|node_modules|dist|build|__pycache__)$/;

/**
 * Files below a folder whose names match, in a fixed order. Left out are hidden folders, packages, builds, what may not
 * be read, and the directories of runs, which keep a copy of the recipe that they came from. Links to folders are not
 * followed: they may lead round in a circle.
 */
export function filesBelow(folder: string, pattern: RegExp, depth: number): string[] {
  const found: string[] = [];
  let seen = 0;
  let folders = [folder];
  for (let level = 0; level <= depth && folders.length > 0; level++) {
    const below: string[] = [];
    for (const parent of folders) {
      const entries = seen < mostEntries ? entriesOf(parent) : [];
      seen += entries.length;
      if (entries.some(({ name }) => name === "events.ndjson")) continue;
      for (const entry of entries) {
        if (entry.isFile() && pattern.test(entry.name)) found.push(join(parent, entry.name));
        if (entry.isDirectory() && !skipped.test(entry.name)) below.push(join(parent, entry.name));
      }
    }
    folders = below;
  }
  return found.sort();
}

/** None of a folder that may not be read. */
export function entriesOf(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch {
    return [];
  }
}
