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
  for (const word of ["--parsable", "--job-name=it", "--nodes=3", "--exclusive", "--requeue", "--signal=B:USR2@120"]) {
    expect(words).toContain(word);
  }
  expect(words).toContain("--partition=a b");
  expect(words.some((word) => word.startsWith("--gpus"))).toBe(false);
  expect(said("script")).toBe(`#!/bin/sh\nexec 'molt'\\''s' 'resume' '${directory}'\n`);
});

test("a job gets the GPUs that the recipe's processes have on a node, unless its own words say otherwise", () => {
  const gpusOf = (sections: object) => {
    submit(sections);
    return said("words")
      .split("\n")
      .filter((word) => word.startsWith("--gpus"));
  };
  const onH100 = { run: { device: "H100" } };
  expect(gpusOf(onH100)).toEqual(["--gpus-per-node=4"]);
  const actor = { num_nodes: 2, devices_per_node: 4 };
  // Four ranks, and on each node an engine of two; four ranks alone.
  const engines = { engine: { kind: "vllm", count: 2 }, vllm: { tensor_parallel_size: 2 } };
  const launcher = { kind: "slurm", args: [] };
  expect(gpusOf({ ...onH100, actor, launcher, ...engines })).toEqual(["--gpus-per-node=8"]);
  expect(gpusOf({ ...onH100, actor, launcher, data: { output_key: "reply" } })).toEqual(["--gpus-per-node=4"]);
  expect(gpusOf({ actor, launcher })).toEqual([]);
  vi.stubEnv("MOLT_DEVICE", "cuda");
  expect(gpusOf({ actor, launcher })).toEqual(["--gpus-per-node=5"]);
  expect(gpusOf({ run: { device: "cpu" }, actor, launcher })).toEqual([]);
  const args = ["--gpus-per-node=h100:4"];
  expect(gpusOf({ ...onH100, launcher: { kind: "slurm", args } }).at(-1)).toBe(args[0]);
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

test("a Slurm that does not answer has not ended it", () => {
  const later = () => vi.setSystemTime(Date.now() + 3000);
  const rows = () => runRows(join(home, "runs")).map(({ state }) => state);
  submit();
  command("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
  // Not asked before: it may be at work.
  expect([rows(), workerOf(directory)]).toEqual([["running"], `Slurm job ${job}`]);
  expect(() => RunDirectory.open(directory)).toThrow(
    expect.objectContaining({ fix: expect.stringContaining(`remove ${join(directory, "job.json")}`) }),
  );
  signalRun(directory, false);
  expect(said("cancelled")).toBe(`--batch --signal=TERM ${job}\n`);
  later();
  command("squeue", "echo PENDING");
  expect(rows()).toEqual(["queued"]);
  later();
  command("squeue", "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1");
  expect(rows()).toEqual(["queued"]);
  later();
  command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
  expect([rows(), workerOf(directory)]).toEqual([["died"], null]);
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
