import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import type { Readable } from "node:stream";
import { deadlineMs } from "../deadline.ts";

export interface Ended {
  /** What it printed, the last megabyte. */
  output: string;
  errors: string;
  /** Null where a signal ended it. */
  code: number | null;
}

/** Characters of each stream that are kept: the last ones. */
const keptOutput = 1024 * 1024;
/** For output that is under way when the program has ended; a process that left its group may hold it open. */
const drainSeconds = 2;

/** An empty folder, whose path begins with `prefix`, for as long as `use` takes. */
export async function inFolder<T>(prefix: string, use: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(prefix);
  try {
    return await use(folder);
  } finally {
    // A program may leave what cannot be removed.
    await rm(folder, { recursive: true, force: true, maxRetries: 3 }).catch(() => {});
  }
}

/** Nothing of the runner's own environment but what finds programs and names the language. */
export function cleanEnvironment(HOME: string) {
  const { PATH, LANG, LC_ALL, TZ } = process.env;
  return { PATH, LANG, LC_ALL, TZ, HOME, TMPDIR: HOME };
}

/** Kills the group once descriptor 3 closes: when the process that holds its other end is gone, however that came. */
const guarded = '(read -r _ <&3; kill -KILL -$$) >/dev/null 2>&1 & exec "$@" 3<&-';

/** Runs a program in its environment's HOME, as a process group; `signal` kills it and all that it started. */
export async function runProgram(
  words: string[],
  env: ReturnType<typeof cleanEnvironment>,
  { input = "", signal, megabytes }: { input?: string; signal: AbortSignal; megabytes?: number },
): Promise<Ended> {
  // Of address space; macOS has no such limit.
  const limited = megabytes === undefined ? guarded : `ulimit -v ${megabytes * 1024} 2>/dev/null; ${guarded}`;
  const child = spawn("/bin/sh", ["-c", limited, "sh", ...words], {
    cwd: env.HOME,
    env,
    detached: true,
    stdio: ["pipe", "pipe", "pipe", "pipe"],
  });
  const closed = once(child, "close");
  if (child.pid === undefined) await closed; // says why
  const kill = () => {
    try {
      process.kill(-child.pid!, "SIGKILL");
    } catch {} // it is gone
  };
  let drain: NodeJS.Timeout | undefined;
  child.once("exit", () => {
    kill(); // what it left running would hold its output open
    drain = setTimeout(() => {
      for (const stream of child.stdio) stream?.destroy();
    }, deadlineMs(drainSeconds));
  });
  signal.addEventListener("abort", kill, { once: true });
  if (signal.aborted) kill();
  const [output, errors] = [collect(child.stdout!), collect(child.stderr!)];
  child.stdin!.on("error", () => {}); // a program need not read its input
  child.stdin!.end(input);
  const [code] = await closed;
  clearTimeout(drain);
  signal.removeEventListener("abort", kill);
  return { output: output(), errors: errors(), code };
}

function collect(stream: Readable): () => string {
  let text = "";
  stream.setEncoding("utf8").on("data", (chunk) => {
    text += chunk;
    if (text.length > 2 * keptOutput) text = text.slice(-keptOutput);
  });
  return () => text.slice(-keptOutput);
}
