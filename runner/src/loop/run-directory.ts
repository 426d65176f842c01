import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { basename, join, resolve } from "node:path";
import { RunnerError, usageError } from "../errors.ts";
import { jobOf, ownJob, signalJob } from "../launchers/slurm-job.ts";

/** Who judges and replaces a lock does it alone, in less time: an older guard is of a process that was killed then. */
const guardMs = 5000;

/** `runs/<id>/`, held by one process at a time. */
export class RunDirectory {
  readonly path: string;
  readonly runId: string;
  readonly recipe: string;
  readonly events: string;
  readonly checkpoints: string;
  readonly export: string;
  private released = false;

  private constructor(path: string, runId: string) {
    this.path = path;
    this.runId = runId;
    this.recipe = join(path, "recipe.yaml");
    this.events = join(path, "events.ndjson");
    this.checkpoints = join(path, "checkpoints");
    this.export = join(path, "export");
  }

  /** `<name>-<date>-<time>`, numbered when two start in one second. */
  static create(root: string, name: string, now = new Date()): RunDirectory {
    const stamp = now.toISOString().slice(0, 19).replaceAll("-", "").replaceAll(":", "").replace("T", "-");
    mkdirSync(root, { recursive: true });
    for (let attempt = 1; ; attempt++) {
      const runId = attempt === 1 ? `${name}-${stamp}` : `${name}-${stamp}-${attempt}`;
      const path = resolve(root, runId);
      if (unlessThere(() => mkdirSync(path))) return RunDirectory.hold(path, runId);
    }
  }

  static open(path: string): RunDirectory {
    const { path: full, runId } = RunDirectory.at(path);
    return RunDirectory.hold(full, runId);
  }

  /** To look at, whoever holds it. */
  static at(path: string): RunDirectory {
    const full = resolve(path);
    if (!existsSync(join(full, "events.ndjson")) || !existsSync(join(full, "recipe.yaml"))) {
      throw usageError(`${path} is not a run directory: it holds no events.ndjson and recipe.yaml`, {
        fix: "name a folder below runs/, such as the one that the run printed at its end",
      });
    }
    return new RunDirectory(full, basename(full));
  }

  release(): void {
    if (this.released) return;
    this.released = true;
    rmSync(join(this.path, "owner.pid"), { force: true });
  }

  private static hold(path: string, runId: string): RunDirectory {
    const lock = join(path, "owner.pid");
    const own = `${process.pid} ${startOf(process.pid)} ${hostname()}`;
    const refuse = (worker: string | null, held = lock) => {
      if (worker === null || worker === ownJob()) return;
      const fix = `wait for it or end it; if ${worker} is something else, remove ${held}`;
      throw new RunnerError(`run ${runId} is at work in ${worker}`, { fix });
    };
    // A job may have no process yet.
    refuse(jobOf(path)?.name ?? null, join(path, "job.json"));
    const guard = `${lock}.taking`;
    while (!unlessThere(() => writeFileSync(guard, "", { flag: "wx" }))) {
      const made = statSync(guard, { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
      if (Date.now() - made > guardMs) rmSync(guard, { force: true });
    }
    try {
      refuse(workerOf(path));
      writeFileSync(lock, own);
    } finally {
      rmSync(guard, { force: true });
    }
    return new RunDirectory(path, runId);
  }
}

/** False where it exists, perhaps since just now. */
function unlessThere(make: () => void): boolean {
  try {
    make();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/**
 * The process of this machine that is at work on a run, by its id; null when none is. A later process may have been
 * given the same id.
 */
export function ownerOf(directory: string): number | null {
  try {
    const [id, start, host = hostname()] = readFileSync(join(directory, "owner.pid"), "utf8").split(" ");
    const pid = Number(id);
    return host === hostname() && isAlive(pid) && (start === undefined || start === startOf(pid)) ? pid : null;
  } catch {
    return null; // Nobody's, perhaps since just now.
  }
}

/** Who is at work on a run, in words: a process of this machine, or a job of the run's that has not ended. */
export function workerOf(directory: string): string | null {
  const pid = ownerOf(directory);
  return pid === null ? (jobOf(directory)?.name ?? null) : `process ${pid}`;
}

/** Ends who is at work on a run as Ctrl-C does: once, or twice for `now`. */
export function signalRun(directory: string, now: boolean): void {
  const pid = ownerOf(directory);
  const job = pid === null ? jobOf(directory) : null;
  // Two of one kind may arrive as one.
  for (const signal of now ? (["TERM", "INT"] as const) : (["TERM"] as const)) {
    if (pid !== null) process.kill(pid, `SIG${signal}`);
    else if (job) signalJob(job, signal);
  }
}

/** When a process began, in ticks since the machine did; empty of a zombie, and where nobody tells (not Linux). */
export function startOf(pid: number): string {
  try {
    // The command's name stands in parentheses and may hold anything; after it the state, and the start as the 20th.
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)!.split(" ");
    return fields[0] === "Z" ? "" : fields[19]!;
  } catch {
    return "";
  }
}

export function isAlive(pid: number): boolean {
  if (!Number.isInteger(pid) || pid <= 0 || pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM"; // another user's
  }
}
