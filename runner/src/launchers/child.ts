import { type ChildProcess, spawn } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { deadlineMs } from "../deadline.ts";
import { deferred, failure } from "../deferred.ts";
import { RunnerError } from "../errors.ts";
import { indented } from "../lists.ts";

export interface ChildOptions {
  /** As messages call it: "engine 0", "rank 1". */
  name: string;
  /** Verb and arguments of this same command line, or what follows `program`. */
  args: string[];
  /** Another program's name, in place of this command line. */
  program?: string;
  env?: Record<string, string>;
  /** Where it works; as this process where not given. */
  cwd?: string;
  /** Called with each whole line of output. */
  onLine?: (line: string) => void;
}

export class ChildDied extends RunnerError {}

const keptLines = 20;

/** For a program that does not heed its standard input: once that closes its group is asked to end, then killed. */
const guarded =
  'exec 3<&0 </dev/null; (trap "" TERM; read -r _ <&3; kill -TERM -$$; sleep 5; kill -KILL -$$) >/dev/null 2>&1 & ' +
  'exec "$@" 3<&-';

/**
 * Another `molt-runner` process, or another program. Standard input only says the end: when this process dies, however
 * it dies, the pipe closes and the child leaves (`endWithParent`). Its last output lines are kept to explain a death.
 */
export class Child {
  readonly name: string;
  readonly lastLines: string[] = [];
  /** Rejects, never resolves, when the child ends before `stop`. */
  readonly died: Promise<never>;
  private readonly process: ChildProcess;
  private readonly closed: Promise<void>;
  private stopping = false;

  constructor({ name, args, program, env, cwd, onLine }: ChildOptions) {
    this.name = name;
    // One OpenMP thread team per process, and no spinning at barriers: the cores are shared.
    const threads = program === undefined && { OMP_WAIT_POLICY: "passive", OMP_NUM_THREADS: "1" };
    const [file, ...words] =
      program === undefined
        ? [process.execPath, "--enable-source-maps", cliPath(), ...args]
        : ["/bin/sh", "-c", guarded, "sh", program, ...args];
    this.process = spawn(file!, words, {
      stdio: ["pipe", "pipe", "pipe"],
      // Of a group of its own: Ctrl-C at the terminal reaches the controller alone, which ends its children in order.
      detached: true,
      cwd,
      env: { ...threads, ...process.env, ...env, MOLT_CHILD: "1" },
    });
    // What a program leaves behind goes with it.
    if (program !== undefined) this.process.once("exit", () => this.killGroup());
    this.process.stdin?.on("error", () => {});
    for (const stream of [this.process.stdout, this.process.stderr]) {
      let rest = "";
      stream?.setEncoding("utf8").on("data", (text: string) => {
        const lines = (rest + text).split("\n");
        rest = lines.pop() ?? "";
        if (onLine) for (const line of lines) onLine(line);
        this.lastLines.push(...lines.filter((line) => line.trim() !== ""));
        this.lastLines.splice(0, this.lastLines.length - keptLines);
      });
    }
    const [closed, death] = [deferred(), failure()];
    [this.closed, this.died] = [closed.promise, death.promise];
    this.process.once("error", (error) => {
      closed.resolve();
      death.reject(new RunnerError(`${name} did not start: ${error.message}`, { cause: error }));
    });
    this.process.once("close", (code, signal) => {
      closed.resolve();
      if (!this.stopping) death.reject(this.deathError(code, signal));
    });
  }

  /** Asks by closing standard input, then by SIGTERM, then by SIGKILL; resolves when the process is gone. */
  async stop(graceSeconds = 5): Promise<void> {
    this.stopping = true;
    this.process.stdin?.end();
    const timers = [
      setTimeout(() => this.process.kill("SIGTERM"), deadlineMs(graceSeconds)),
      setTimeout(() => this.process.kill("SIGKILL"), deadlineMs(graceSeconds + 2)),
    ];
    await this.closed;
    for (const timer of timers) clearTimeout(timer);
  }

  kill(signal: NodeJS.Signals = "SIGKILL"): void {
    this.process.kill(signal);
  }

  private killGroup(): void {
    try {
      process.kill(-this.process.pid!, "SIGKILL");
    } catch {
      // Nothing is left of it.
    }
  }

  private deathError(code: number | null, signal: NodeJS.Signals | null): ChildDied {
    const how = signal ? `was killed by ${signal}` : `ended with exit code ${code}`;
    const lines = this.lastLines.length > 0 ? `; its last lines:${indented(this.lastLines)}` : " without a word";
    return new ChildDied(`${this.name} ${how}${lines}`);
  }
}

/** A call to a process that dies may fail before its death is known, which is the cause: given `seconds` to be told. */
export async function orDeath<T>(call: Promise<T>, died: Promise<never>, seconds: number): Promise<T> {
  try {
    return await Promise.race([call, died]);
  } catch (error) {
    await Promise.race([died, sleep(deadlineMs(seconds))]);
    throw error;
  }
}

/**
 * In a child: leave when the parent is gone. Signals are the controller's, which ends its children in order: Slurm
 * sends SIGTERM to every process of a job that is to save.
 */
export function endWithParent(onEnd: () => Promise<void> | void): void {
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => {});
  process.stdin.resume();
  process.stdin.once("end", async () => {
    const hard = setTimeout(() => process.exit(1), deadlineMs(3));
    await onEnd();
    clearTimeout(hard);
    process.exit(0);
  });
}

/** Bundled, every entry lies in `dist/`; from source (tests) the built command line is taken. */
export function cliPath(): string {
  return process.env.MOLT_CLI ?? fileURLToPath(new URL("./cli.js", import.meta.url));
}
