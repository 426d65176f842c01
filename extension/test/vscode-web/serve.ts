// Serves VS Code on loopback, without authentication: for tests only.
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { freePort } from "../../../runner/src/launchers/free-port.ts";
import { scale } from "./setup.ts";

export interface ServeOptions {
  /** As `setUpVsCode` returned it. */
  dir: string;
  extensions: string;
  userData: string;
  env: NodeJS.ProcessEnv;
}

export interface Served {
  url: string;
  stop: () => Promise<void>;
}

/** The words that start code-server, with its folders. */
export function codeServer({ dir, extensions, userData }: Omit<ServeOptions, "env">): [string, ...string[]] {
  const entry = join(dir, "node_modules", "code-server", "out", "node", "entry.js");
  const folders = ["--user-data-dir", userData, "--extensions-dir", extensions, "--config", "/dev/null"];
  return [join(dir, "node24"), entry, ...folders];
}

/** Starts code-server and waits until it answers. Workspace trust is on, as on a desktop. */
export async function serveVsCode({ env, ...installed }: ServeOptions): Promise<Served> {
  const port = await freePort();
  const [command, ...words] = codeServer(installed);
  const quiet = ["--disable-telemetry", "--disable-update-check", "--disable-getting-started-override"];
  const child = spawn(command, [...words, ...quiet, "--auth", "none", "--bind-addr", `127.0.0.1:${port}`], {
    detached: true, // a process group of its own, to be ended whole
    env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (text: Buffer) => {
      output = (output + text).slice(-4000);
    });
  }
  const closed = new Promise((resolve) => child.once("close", resolve));
  const url = `http://127.0.0.1:${port}`;
  const stop = () => stopGroup(child, closed);
  try {
    await answers(url, child, () => output);
  } catch (error) {
    await stop();
    throw error;
  }
  return { url, stop };
}

async function answers(url: string, child: ChildProcess, output: () => string): Promise<void> {
  const deadline = Date.now() + 60_000 * scale;
  while (Date.now() < deadline) {
    if (child.exitCode !== null) throw new Error(`code-server ended with exit code ${child.exitCode}:\n${output()}`);
    const response = await fetch(`${url}/healthz`).catch(() => undefined);
    if (response?.ok) return;
    await sleep(100);
  }
  throw new Error(`waited 60 s for code-server to answer at ${url}:\n${output()}`);
}

async function stopGroup(child: ChildProcess, closed: Promise<unknown>): Promise<void> {
  for (const signal of ["SIGTERM", "SIGKILL"] as const) {
    try {
      process.kill(-child.pid!, signal);
    } catch {
      return; // gone already
    }
    await Promise.race([closed, sleep(5_000 * scale, undefined, { ref: false })]);
  }
}
