// Runs the set-up's commands: output to a log, its end shown on failure, a deadline for each, no process left behind.
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { cacheDirectory, SetupError } from "./locate.mjs";

const shownLines = 25;
const networkFailure = new RegExp(
  [
    "ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNRESET|ECONNREFUSED|ENETUNREACH", // npm
    "NewConnectionError|ConnectTimeout|ReadTimeout|Connection aborted|Could not fetch URL", // pip
    "Temporary failure in name resolution|CERTIFICATE_VERIFY_FAILED|network (?:timeout|error)",
  ].join("|"),
  "i",
);

/** @type {Set<import("node:child_process").ChildProcess>} */
const children = new Set();

function killChildren() {
  for (const child of children) {
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch {
      // Already gone.
    }
  }
}

/** Commands run in process groups of their own, so that a whole build ends with us. Returns what undoes it. */
export function endChildrenWithUs() {
  const codes = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 };
  const leave = (signal) => process.exit(codes[signal]);
  process.once("exit", killChildren);
  for (const signal of Object.keys(codes)) process.once(signal, leave);
  return () => {
    process.off("exit", killChildren);
    for (const signal of Object.keys(codes)) process.off(signal, leave);
  };
}

/** A file in `folder` that says what was put there; written last, so that a killed step leaves none. */
export function stampIn(folder, name, content) {
  const path = join(folder, `.molt-${name}`);
  return {
    current: () => existsSync(path) && readFileSync(path, "utf8") === content,
    write: () => writeFileSync(path, content),
  };
}

export function logPath() {
  return join(cacheDirectory(), "setup.log");
}

/**
 * Resolves with what the command printed; rejects with a SetupError that shows the output's end.
 * @param {string} command @param {string[]} args
 * @param {{ cwd?: string, env?: Record<string, string>, minutes?: number, what?: string }} [options]
 * @returns {Promise<string>}
 */
export function run(command, args, { cwd, env, minutes = 1, what = command } = {}) {
  mkdirSync(cacheDirectory(), { recursive: true });
  appendFileSync(logPath(), `\n$ ${[command, ...args].join(" ")}\n`);
  return new Promise((resolve, reject) => {
    const options = { cwd, env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"], detached: true };
    const child = spawn(command, args, options);
    children.add(child);
    let output = "";
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      process.kill(-child.pid, "SIGKILL");
    }, minutes * 60_000);
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => {
        output += text;
        appendFileSync(logPath(), text);
      });
    }
    const finish = (settle) => {
      clearTimeout(timer);
      children.delete(child);
      settle();
    };
    child.once("error", (error) => finish(() => reject(new SetupError(`${what} did not start: ${error.message}`))));
    child.once("close", (code, signal) => {
      const how = late ? `took more than ${minutes} minutes` : `ended with ${signal ?? `exit code ${code}`}`;
      finish(() => (code === 0 ? resolve(output) : reject(failure(`${what} ${how}`, output))));
    });
  });
}

/** @param {string} message @param {string} output */
function failure(message, output) {
  const lines = output.trimEnd().split("\n").slice(-shownLines);
  const error = new SetupError(
    `${message}; its last lines (all of them in ${logPath()}):\n    ${lines.join("\n    ")}`,
    networkFailure.test(output)
      ? "the network, or a proxy or certificate setting on the way to it; try again when the host above answers"
      : undefined,
  );
  return Object.assign(error, { network: networkFailure.test(output) });
}

/** What a command prints, or null where it is absent or fails. @param {string} command @param {string[]} args */
export async function capture(command, args) {
  return run(command, args).catch(() => null);
}
