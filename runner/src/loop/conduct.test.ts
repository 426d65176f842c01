import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { EventLog, readEvents } from "../telemetry/log.ts";
import { conduct } from "./conduct.ts";
import { RunDirectory } from "./run-directory.ts";

let root: string;
let directory: RunDirectory;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "conduct-"));
  directory = RunDirectory.create(root, "run");
  vi.spyOn(process.stdout, "write").mockReturnValue(true);
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(root, { recursive: true, force: true });
});

const options = (log: EventLog) => ({ directory, log, json: true, next: () => [] });
const summary = () => JSON.parse(readFileSync(join(directory.path, "summary.json"), "utf8"));

test("a second signal ends the process at once, with a summary and without a lock", async () => {
  const exit = vi.spyOn(process, "exit").mockImplementation(() => undefined as never);
  const code = await conduct(options(new EventLog(directory.events)), async (interrupted) => {
    process.emit("SIGINT");
    expect(interrupted.aborted).toBe(true);
    expect(exit).not.toHaveBeenCalled();
    process.emit("SIGTERM");
    expect(exit).toHaveBeenCalledWith(130);
    expect(summary().state).toBe("interrupted");
    expect(existsSync(join(directory.path, "owner.pid"))).toBe(false);
    return "interrupted";
  });
  expect(code).toBe(130);
});

test("a failure is logged, summed up and thrown on", async () => {
  const running = conduct(options(new EventLog(directory.events)), async () => {
    throw new Error("rank 0 was killed");
  });
  await expect(running).rejects.toThrow("rank 0 was killed");
  expect([...readEvents(directory.events)].map(({ type }) => type)).toEqual(["failed", "ended"]);
  expect(summary()).toMatchObject({ state: "failed", failure: "rank 0 was killed" });
  expect(existsSync(join(directory.path, "owner.pid"))).toBe(false);
});

test("on a full disk the first error is told, not that it cannot be written down", async () => {
  const log = new EventLog(directory.events);
  symlinkSync("/dev/full", directory.events);
  const running = conduct(options(log), async () => {
    throw new Error("checkpoint 4 could not be written");
  });
  await expect(running).rejects.toThrow("checkpoint 4 could not be written");
});

test("a run directory is held by one process, whose death frees it", () => {
  writeFileSync(directory.events, "");
  writeFileSync(directory.recipe, "");
  writeFileSync(join(directory.path, "owner.pid"), String(process.ppid));
  expect(() => RunDirectory.open(directory.path)).toThrow(`run ${directory.runId} is at work in process`);
  writeFileSync(join(directory.path, "owner.pid"), "999999999");
  const held = RunDirectory.open(directory.path);
  expect(readFileSync(join(held.path, "owner.pid"), "utf8")).toBe(String(process.pid));
  held.release();
  writeFileSync(join(directory.path, "owner.pid"), String(process.ppid)); // somebody else's by now
  held.release();
  expect(existsSync(join(directory.path, "owner.pid"))).toBe(true);
});

test("two runs of one second get directories of their own", () => {
  const now = new Date("2026-01-02T03:04:05Z");
  const names = [1, 2].map(() => RunDirectory.create(root, "twin", now).runId);
  expect(names).toEqual(["twin-20260102-030405", "twin-20260102-030405-2"]);
});
