import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { readEdited } from "../recipe/index.ts";
import { EventLog, readEvents } from "../telemetry/log.ts";
import { conduct } from "./conduct.ts";
import { ownerOf, RunDirectory } from "./run-directory.ts";

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

const { recipe } = readEdited("", "recipe.yaml");
const options = (log: EventLog) => ({ recipe, directory, log, json: true, begin: () => {}, next: () => [] });
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

// A full disk takes neither; a folder in a file's place does not either.
test("what cannot be written down neither fails a run nor hides why it failed", async () => {
  const log = new EventLog(directory.events);
  log.flush();
  mkdirSync(join(directory.path, "summary.json"));
  expect(await conduct(options(log), async () => "completed")).toBe(0);
  expect(log.run.state).toBe("completed");
  const warning = { type: "warning", message: expect.stringMatching(/^the summary could not be written: /) };
  expect([...log.read()].at(-1)).toMatchObject(warning);
  const failing = conduct(options(log), async () => {
    throw new Error("checkpoint 4 could not be written");
  });
  await expect(failing).rejects.toThrow("checkpoint 4 could not be written");
});

test("a run directory is held by one process, whose death frees it", () => {
  writeFileSync(directory.events, "");
  writeFileSync(directory.recipe, "");
  writeFileSync(join(directory.path, "owner.pid"), String(process.ppid));
  expect(() => RunDirectory.open(directory.path)).toThrow(`run ${directory.runId} is at work in process`);
  writeFileSync(join(directory.path, "owner.pid"), "999999999");
  const held = RunDirectory.open(directory.path);
  expect(readFileSync(join(held.path, "owner.pid"), "utf8").split(" ")[0]).toBe(String(process.pid));
  held.release();
  writeFileSync(join(directory.path, "owner.pid"), String(process.ppid)); // somebody else's by now
  held.release();
  expect(existsSync(join(directory.path, "owner.pid"))).toBe(true);
});

// The system gives ids again.
test("a process that began with the id of a run's dead one is not taken for it", () => {
  const lock = join(directory.path, "owner.pid");
  const own = readFileSync(lock, "utf8");
  expect(ownerOf(directory.path)).toBeNull(); // ourselves
  writeFileSync(lock, String(process.ppid));
  expect(ownerOf(directory.path)).toBe(process.ppid);
  writeFileSync(lock, own.replace(/^\d+/, String(process.ppid))); // which began before us
  expect(ownerOf(directory.path)).toBeNull();
});

test("two runs of one second get directories of their own", () => {
  const now = new Date("2026-01-02T03:04:05Z");
  const names = [1, 2].map(() => RunDirectory.create(root, "twin", now).runId);
  expect(names).toEqual(["twin-20260102-030405", "twin-20260102-030405-2"]);
});
