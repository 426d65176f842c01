// Serves VS Code on loopback, without authentication: for tests only.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { scale } from "./setup.mjs";

/**
 * Starts code-server and waits until it answers.
 * @param {{ dir: string, extensions: string, userData: string, workspace: string, env: NodeJS.ProcessEnv }} options
 */
export async function serveVsCode({ dir, extensions, userData, workspace, env }) {
  const port = await freePort();
  const folders = ["--user-data-dir", userData, "--extensions-dir", extensions];
  const quiet = ["--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"];
  const entry = join(dir, "node_modules", "code-server", "out", "node", "entry.js");
  const bind = ["--auth", "none", "--bind-addr", `127.0.0.1:${port}`, "--config", "/dev/null"];
  const child = spawn(join(dir, "node24"), [entry, ...bind, ...folders, ...quiet, workspace], {
    detached: true, // a process group of its own, to be ended whole
    env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (text) => {
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
  return { url: `${url}/?folder=${encodeURIComponent(workspace)}`, stop };
}

async function answers(url, child, output) {
  const deadline = Date.now() + 60_000 * scale;
  while (Date.now() < deadline) {
    if (child.exitCode !== null) throw new Error(`code-server ended with exit code ${child.exitCode}:\n${output()}`);
    const response = await fetch(`${url}/healthz`).catch(() => undefined);
    if (response?.ok) return;
    await sleep(100);
  }
  throw new Error(`waited 60 s for code-server to answer at ${url}:\n${output()}`);
}

async function stopGroup(child, closed) {
  for (const signal of ["SIGTERM", "SIGKILL"]) {
    try {
      process.kill(-child.pid, signal);
    } catch {
      return; // gone already
    }
    await Promise.race([closed, sleep(5_000 * scale, undefined, { ref: false })]);
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
