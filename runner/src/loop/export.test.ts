import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { copyExport } from "./export.ts";

const disk = vi.hoisted(() => ({ renames: 0, failsAt: Infinity }));
vi.mock("node:fs", async (importOriginal) => {
  const fs = await importOriginal<typeof import("node:fs")>();
  const renameSync: typeof fs.renameSync = (...args) => {
    if (++disk.renames === disk.failsAt) throw new Error("EIO: rename");
    fs.renameSync(...args);
  };
  return { ...fs, renameSync };
});

let root: string;
let source: string;
let target: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "export-"));
  [source, target] = [join(root, "source"), join(root, "deep", "target")];
  mkdirSync(source);
  writeFileSync(join(source, "model.safetensors"), "new");
  Object.assign(disk, { renames: 0, failsAt: Infinity });
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const weights = () => readFileSync(join(target, "model.safetensors"), "utf8");

function makeOld(path: string): void {
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, "model.safetensors"), "old");
  writeFileSync(join(path, "left-over"), "");
}

test("an export takes the place of what was there, and leaves nothing beside it", async () => {
  makeOld(target);
  await copyExport(source, target);
  expect(readdirSync(target)).toEqual(["model.safetensors"]);
  expect(weights()).toBe("new");
  expect(readdirSync(join(root, "deep"))).toEqual(["target"]);
});

test("one that fails at the last moment leaves the old export", async () => {
  makeOld(target);
  disk.failsAt = 2; // the old one is aside, the new one does not come
  await expect(copyExport(source, target)).rejects.toThrow("EIO: rename");
  expect(weights()).toBe("old");
  expect(readdirSync(join(root, "deep"))).toEqual(["target"]);
});

test("after a kill between its two renames the old export is found again", async () => {
  makeOld(`${target}.old`);
  await expect(copyExport(join(root, "absent"), target)).rejects.toThrow("absent");
  expect(weights()).toBe("old");
});
