import { appendFileSync, cpSync, mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readRow, runLabel, runTooltip } from "./run-rows.ts";

let directory: string;
beforeEach(() => {
  directory = join(mkdtempSync(join(tmpdir(), "molt-rows-")), "a-run");
  mkdirSync(directory);
});
afterEach(() => rmSync(join(directory, ".."), { recursive: true }));

const started = { type: "started", version: 1, runId: "a-run", recipe: "a.yaml", command: "run", totalSteps: 60 };
const step = { type: "step", step: 34, policyVersion: 34, metrics: { reward: 0.6125 } };
const log = (...events: object[]) => {
  const lines = events.map((event, time) => `${JSON.stringify({ time, ...event })}\n`);
  appendFileSync(join(directory, "events.ndjson"), lines.join(""));
};

test("a live run's row is its log's, read again as that grows", async () => {
  log(started);
  expect(runLabel(await readRow(directory, true))).toBe("0/60, running");
  log(step);
  utimesSync(join(directory, "events.ndjson"), 1, 2e9);
  expect(runLabel(await readRow(directory, true))).toBe("34/60, reward 0.613, running");
});

test("one that says that it runs, and whose process is gone, died", async () => {
  log(started, step);
  expect((await readRow(directory, false)).state).toBe("died");
});

test("an ended run's row is its summary's, until a resume has written more", async () => {
  log(started, step, { type: "ended", state: "completed" });
  const summary = { state: "interrupted", failure: null, steps: 7, total_steps: 60, reward: { last: 0.5 }, health: [] };
  writeFileSync(join(directory, "summary.json"), JSON.stringify(summary));
  utimesSync(join(directory, "events.ndjson"), 1, 1e9);
  expect(runLabel(await readRow(directory, false))).toBe("7/60, reward 0.500, interrupted");
  utimesSync(join(directory, "events.ndjson"), 1, 2e9);
  expect(runLabel(await readRow(directory, false))).toBe("34/60, reward 0.613, completed");
});

test("a log that is none is unreadable and says why; control characters move nothing", async () => {
  log({ type: "never heard of\u001b[2J" });
  const row = await readRow(directory, false);
  expect(row.state).toBe("unreadable");
  expect(row.failure).toContain("events.ndjson:1");
  expect(runTooltip("a-run", { ...row, failure: "\u001b[2Jgone" })).toBe("a-run\n0/?, unreadable\n\\u{1b}[2Jgone");
});

test("a run of the first format, kept by the runner's tests, is read", async () => {
  cpSync(new URL("../../runner/test/fixtures/run-1/events.ndjson", import.meta.url), join(directory, "events.ndjson"));
  expect((await readRow(directory, false)).state).toBe("completed");
});
