import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { findRun, listRuns, ownerOf } from "./find-run.ts";

let folder = "";
let root = "";
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "find-run-"));
  root = join(folder, "runs");
  const runs = { "sort-20260101-000000": 300, "sort-20260102-000000": 100, "sum-20260101-000000": 200, outside: 400 };
  for (const [id, seconds] of Object.entries(runs)) {
    const path = join(id === "outside" ? folder : root, id);
    mkdirSync(path, { recursive: true });
    writeFileSync(join(path, "events.ndjson"), "");
    utimesSync(join(path, "events.ndjson"), seconds, seconds);
  }
  // No run: the output of one that a tool started.
  writeFileSync(join(root, "sort-1796000000000.log"), "");
  mkdirSync(join(root, "no-run"));
});
afterAll(() => rmSync(folder, { recursive: true }));

test("a run is named by its id, the beginning of one, latest, or a path", () => {
  expect(listRuns(root).map(({ id }) => id)).toEqual([
    "sort-20260101-000000",
    "sum-20260101-000000",
    "sort-20260102-000000",
  ]);
  expect(findRun("sort-20260102-000000", root)).toBe(join(root, "sort-20260102-000000"));
  expect(findRun("su", root)).toBe(join(root, "sum-20260101-000000"));
  expect(findRun("latest", root)).toBe(join(root, "sort-20260101-000000"));
  mkdirSync(join(root, "sum-20260101-000000", "checkpoints"));
  expect(findRun("latest", root, "checkpoints")).toBe(join(root, "sum-20260101-000000"));
  expect(findRun(join(folder, "outside"), root)).toBe(join(folder, "outside"));
});

test("what names no run, or several, is an error that lists what there is", () => {
  expect(() => findRun("sort", root)).toThrow(
    "several runs begin with 'sort': there are sort-20260101-000000, sort-20260102-000000",
  );
  expect(() => findRun("product", root)).toThrow(/^no run 'product' in .*: there are sort-.*, sum-.*, sort-/);
  expect(() => findRun("no-run", root)).toThrow("no run 'no-run'");
  expect(() => findRun("latest", join(folder, "absent"))).toThrow(/^no run 'latest' in [^:]*$/);
});

test("a run's process is known, another user's too, until it is gone", () => {
  const lock = join(folder, "outside", "owner.pid");
  expect(ownerOf(join(folder, "outside"))).toBeNull();
  writeFileSync(lock, String(process.ppid));
  expect(ownerOf(join(folder, "outside"))).toBe(process.ppid);
  const refusal = Object.assign(new Error("kill EPERM"), { code: "EPERM" });
  const kill = vi.spyOn(process, "kill").mockImplementation(() => {
    throw refusal;
  });
  expect(ownerOf(join(folder, "outside"))).toBe(process.ppid);
  refusal.code = "ESRCH";
  expect(ownerOf(join(folder, "outside"))).toBeNull();
  kill.mockRestore();
  writeFileSync(lock, "");
  expect(ownerOf(join(folder, "outside"))).toBeNull();
  rmSync(lock);
});

test("a name leads nowhere outside its root", () => {
  for (const name of ["..", ".", "", "../..", "../absent", "sum-20260101-000000/../../absent", "..\\outside"]) {
    expect(() => findRun(name, root), name).toThrow("is not a run directory");
  }
  expect(() => findRun("outside", root)).toThrow("no run 'outside'");
});
