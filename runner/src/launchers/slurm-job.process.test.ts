import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunDirectory, signalRun, workerOf } from "../loop/run-directory.ts";
import { readEdited } from "../recipe/index.ts";
import { runRows } from "../telemetry/views/runs.ts";
import { jobOf } from "./slurm-job.ts";
import { submitRun } from "./slurm-submit.ts";

let home: string;
let directory: string;
/** Jobs are asked for anew every two seconds: each test has its own. */
let job = 4200;

const said = (name: string) => readFileSync(join(home, name), "utf8");
const queue = (state: string) => writeFileSync(join(home, "state"), state);

function command(name: string, script: string): void {
  writeFileSync(join(home, "bin", name), `#!/bin/sh\ncd ${home}\n${script}\n`, { mode: 0o755 });
}

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "molt-slurm-"));
  directory = join(home, "runs/it");
  mkdirSync(directory, { recursive: true });
  mkdirSync(join(home, "bin"));
  const started = { type: "started", version: 1, runId: "it", recipe: "r", command: "run", totalSteps: 5, time: 1 };
  writeFileSync(join(directory, "events.ndjson"), `${JSON.stringify(started)}\n`);
  writeFileSync(join(directory, "recipe.yaml"), "");
  job += 1;
  command("sbatch", `printf '%s\\n' "$@" > words; cat > script; echo "${job};cluster"`);
  command("squeue", "echo $@ > asked; cat state");
  command("scancel", "echo $@ >> cancelled");
  queue("PENDING\n");
  vi.stubEnv("PATH", `${join(home, "bin")}:${process.env.PATH}`);
  vi.stubEnv("SLURM_JOB_ID", "");
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(home, { recursive: true });
});

function submit(sections: object = {}): string {
  const launcher = { kind: "slurm", args: ["--partition=a b"], command: ["molt's"], devices_per_node: 4 };
  const text = JSON.stringify({ actor: { num_nodes: 3 }, launcher, ...sections });
  return submitRun(directory, "it", readEdited(text, "/r/recipe.yaml", { environment: {} }).recipe);
}

test("a job gets the recipe's nodes and words, and goes on with its run whenever it begins", () => {
  expect(submit()).toBe(String(job));
  const words = said("words").split("\n");
  for (const word of ["--parsable", "--job-name=it", "--nodes=3", "--requeue", "--signal=B:USR2@120"]) {
    expect(words).toContain(word);
  }
  expect(words).toContain("--partition=a b");
  expect(words.some((word) => word.startsWith("--gpus"))).toBe(false);
  expect(said("script")).toBe(`#!/bin/sh\nexec 'molt'\\''s' 'resume' '${directory}'\n`);
  submit({ run: { device: "H100" } });
  expect(said("words")).toContain("--gpus-per-node=4\n");
});

test("its run is queued, then at work, then, without a word at its end, dead", async () => {
  submit();
  const rows = () => runRows(join(home, "runs")).map(({ state }) => state);
  expect([rows(), workerOf(directory)]).toEqual([["queued"], `Slurm job ${job}`]);
  expect(said("asked")).toBe(`--noheader --jobs=${job} --format=%T\n`);
  expect(() => RunDirectory.open(directory)).toThrow(`run it is at work in Slurm job ${job}`);
  vi.setSystemTime(Date.now() + 3000);
  queue("RUNNING\n");
  expect(rows()).toEqual(["running"]);
  vi.setSystemTime(Date.now() + 3000);
  queue("");
  expect([rows(), workerOf(directory), jobOf(directory)]).toEqual([["died"], null, null]);
  vi.useRealTimers();
});

test("the job itself takes its run over, though another machine's process held it", () => {
  submit();
  queue("RUNNING\n");
  vi.stubEnv("SLURM_JOB_ID", String(job));
  writeFileSync(join(directory, "owner.pid"), `${process.ppid} 1 not-${hostname()}`);
  const held = RunDirectory.open(directory);
  expect(readFileSync(join(directory, "owner.pid"), "utf8")).toContain(`${process.pid} `);
  held.release();
});

test("stop tells its controller; a job that has none leaves the queue", () => {
  submit();
  signalRun(directory, false);
  expect(said("cancelled")).toBe(`${job}\n`);
  vi.setSystemTime(Date.now() + 3000);
  queue("RUNNING\n");
  signalRun(directory, true);
  expect(said("cancelled")).toBe(`${job}\n--batch --signal=TERM ${job}\n--batch --signal=INT ${job}\n`);
  vi.useRealTimers();
});

test("what Slurm refuses is said in its words", () => {
  command("sbatch", "echo 'sbatch: error: invalid partition specified: a b' >&2; exit 1");
  expect(() => submit()).toThrow("sbatch failed: sbatch: error: invalid partition specified: a b");
});
