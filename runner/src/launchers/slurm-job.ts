import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";
import { replaceFile } from "../files.ts";
import { placementOf } from "../recipe/planner/placement.ts";
import type { Recipe } from "../recipe/schema.ts";
import { cliPath } from "./child.ts";
import { shellWord } from "./words.ts";

const answerSeconds = 30;
/** As long an answer of Slurm's stands: whoever follows a run asks often. */
const freshMs = 2000;

/** The job that this process is of, as `jobOf` names it. */
export function ownJob(): string | null {
  const { SLURM_JOB_ID: id } = process.env;
  return id ? nameOf(id) : null;
}

const nameOf = (id: string) => `Slurm job ${id}`;

/**
 * Hands in the job that is to go on with a run, at first and each time that Slurm queues it again: after a node failed,
 * after a preemption, and when the run was told by SIGUSR2 to save before its time limit.
 */
export function submitRun(directory: string, runId: string, recipe: Recipe): string {
  const { launcher, run } = recipe;
  const { nodes } = placementOf(recipe, "run");
  const hasGpus = run.device !== "auto" && run.device !== "cpu";
  const words = [
    ...["--parsable", `--job-name=${runId}`, `--nodes=${nodes}`, "--ntasks-per-node=1", "--requeue"],
    ...["--open-mode=append", `--output=${join(directory, "slurm.log")}`, `--signal=B:USR2@${launcher.save_before}`],
    ...(hasGpus && launcher.devices_per_node !== null ? [`--gpus-per-node=${launcher.devices_per_node}`] : []),
    ...launcher.args,
  ];
  const command = launcher.command ?? [process.execPath, cliPath()];
  // In the shell's place: signals for the batch script are the controller's.
  const script = `#!/bin/sh\nexec ${[...command, "resume", directory].map(shellWord).join(" ")}\n`;
  const [id] = ask("sbatch", words, script).trim().split(";");
  replaceFile(join(directory, "job.json"), JSON.stringify({ slurm: id }));
  return id!;
}

interface Job {
  id: string;
  name: string;
  /** As Slurm calls it: PENDING, RUNNING. */
  state: string;
}

const asked = new Map<string, { at: number; state: string | null }>();
const endStates = ["", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"];

/** A run's job that has not ended. */
export function jobOf(directory: string): Job | null {
  let id: string;
  try {
    id = JSON.parse(readFileSync(join(directory, "job.json"), "utf8")).slurm;
  } catch {
    return null; // it has none
  }
  let known = asked.get(id);
  if (!known || Date.now() - known.at > freshMs) {
    known = { at: Date.now(), state: stateOf(id) };
    asked.set(id, known);
  }
  return known.state === null ? null : { id, name: nameOf(id), state: known.state };
}

function stateOf(id: string): string | null {
  try {
    const state = ask("squeue", ["--noheader", `--jobs=${id}`, "--format=%T"]).trim();
    return endStates.includes(state) ? null : state;
  } catch {
    return null; // forgotten by now
  }
}

/** To the controller; a job that has none is taken out of the queue. */
export function signalJob({ id, state }: Job, signal: "TERM" | "INT"): void {
  ask("scancel", state === "RUNNING" ? ["--batch", `--signal=${signal}`, id] : [id]);
}

/** This process's own job goes back to the queue, to go on with its run later. */
export function requeueOwnJob(): void {
  const { SLURM_JOB_ID: id } = process.env;
  if (id) ask("scontrol", ["requeue", id]);
}

function ask(command: string, args: string[], input?: string): string {
  try {
    const options = { input, encoding: "utf8", timeout: deadlineMs(answerSeconds), stdio: "pipe" } as const;
    return execFileSync(command, args, options);
  } catch (error) {
    const { stderr } = error as { stderr?: string };
    throw new RunnerError(`${command} failed: ${stderr?.trim() || messageOf(error)}`, {
      fix: "see that Slurm's commands work here: sinfo",
    });
  }
}
