import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { filesBelow } from "./files.ts";

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "molt-files-"));
  const paths = ["b.yaml", "a/deep/c.yaml", "a/d.txt", ".hidden/e.yaml", "node_modules/p/f.yaml", "dist/g.yaml"];
  for (const path of [...paths, "runs/r-1/recipe.yaml", "runs/r-1/events.ndjson", "runs/mine.yaml"]) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), "");
  }
  symlinkSync(folder, join(folder, "a", "circle"), "dir");
});
afterAll(() => rmSync(folder, { recursive: true }));

describe("files below a folder", () => {
  const found = (depth: number) => filesBelow(folder, /\.yaml$/, depth).map((path) => path.slice(folder.length + 1));

  it("are those that match, without packages, builds, runs and what is hidden, and through no circle", () => {
    expect(found(9)).toEqual(["a/deep/c.yaml", "b.yaml", "runs/mine.yaml"]);
  });

  it("are looked for so many folders down", () => {
    expect(found(1)).toEqual(["b.yaml", "runs/mine.yaml"]);
    expect(found(0)).toEqual(["b.yaml"]);
  });

  it("are none where there is no folder", () => {
    expect(filesBelow(join(folder, "absent"), /./, 9)).toEqual([]);
  });
});
