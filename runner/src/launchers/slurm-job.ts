import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError } from "../errors.ts";

const answerSeconds = 30;
/** As long an answer of Slurm's stands: whoever follows a run asks often. */
const freshMs = 2000;

/** The job that this process is of, as `jobOf` names it. */
export function ownJob(): string | null {
  const { SLURM_JOB_ID: id } = process.env;
  return id ? nameOf(id) : null;
}

const nameOf = (id: string) => `Slurm job ${id}`;

/** Or Slurm does not say. */
export function isAtWork({ state }: Job): boolean {
  return state === "RUNNING" || state === "UNKNOWN";
}

interface Job {
  id: string;
  name: string;
  /** As Slurm calls it: PENDING, RUNNING; UNKNOWN where it does not answer and has not before. */
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
    known = { at: Date.now(), state: stateOf(id, known?.state ?? "UNKNOWN") };
    asked.set(id, known);
  }
  return known.state === null ? null : { id, name: nameOf(id), state: known.state };
}

/** Null once it has ended. A Slurm that does not answer says nothing: the state `before` stands. */
function stateOf(id: string, before: string): string | null {
  try {
    const state = ask("squeue", ["--noheader", `--jobs=${id}`, "--format=%T"]).trim();
    return endStates.includes(state) ? null : state;
  } catch (error) {
    return /invalid job id/i.test(messageOf(error)) ? null : before; // forgotten by now
  }
}

/** To the controller; a job that has none is taken out of the queue. */
export function signalJob(job: Job, signal: "TERM" | "INT"): void {
  ask("scancel", isAtWork(job) ? ["--batch", `--signal=${signal}`, job.id] : [job.id]);
}

/** This process's own job goes back to the queue, to go on with its run later. */
export function requeueOwnJob(): void {
  const { SLURM_JOB_ID: id } = process.env;
  if (id) ask("scontrol", ["requeue", id]);
}

/** A command of Slurm's, for what it prints. */
export function ask(command: string, args: string[], input?: string): string {
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
