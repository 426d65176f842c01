// The set-up as a list of phases. `main.mjs`, `molt-runner setup` and `molt-runner doctor` call this.
import { existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { addonPhase } from "./addon.mjs";
import { addonLocation, addonPath, cacheDirectory, pythonPath, torchDirectory, torchVersion } from "./locate.mjs";
import { withLock } from "./lock.mjs";
import { buildPhase, inCheckout, packagesPhase } from "./packages.mjs";
import { pythonPhases } from "./python.mjs";
import { endChildrenWithUs } from "./run.mjs";
import { findTools, requireTools } from "./tools.mjs";

/** @typedef {{ name: string, done: () => boolean, run: (log: (line: string) => void) => Promise<void> }} Phase */

/** @param {{ native: boolean, tests: boolean }} options @returns {Phase[]} */
function phases({ native, tests }) {
  return [
    ...(inCheckout() ? [packagesPhase()] : []),
    ...(native || tests ? pythonPhases({ tests }) : []),
    ...(native ? [addonPhase()] : []),
    ...(inCheckout() ? [buildPhase()] : []),
  ];
}

/** Names the phase that begins; where standard error is a terminal, with its seconds. */
function ticker(name, log) {
  if (!process.stderr.isTTY) {
    log(`${name} …`);
    return () => {};
  }
  const started = Date.now();
  const show = () => process.stderr.write(`\r${name} … ${Math.round((Date.now() - started) / 1000)} s`);
  const timer = setInterval(show, 1000);
  show();
  return () => {
    clearInterval(timer);
    process.stderr.write("\r\x1b[K");
  };
}

/** @param {Phase} phase @param {string} count @param {(line: string) => void} log */
async function runPhase(phase, count, log) {
  const started = Date.now();
  const stop = ticker(`[${count}] ${phase.name}`, log);
  try {
    await phase.run((line) => log(`${process.stderr.isTTY ? "\r\x1b[K" : ""}    ${line}`));
  } finally {
    stop();
  }
  log(`[${count}] ${phase.name}: ${((Date.now() - started) / 1000).toFixed(1)} s`);
}

/**
 * Brings everything up to date; what is already is only looked at. Rejects with a SetupError.
 * @param {{ native?: boolean, tests?: boolean, log?: (line: string) => void }} [options]
 */
export async function setup({ native = true, tests = false, log = console.error } = {}) {
  const all = phases({ native, tests });
  // All are asked, so that a wrong MOLT_LIBTORCH is named before any work.
  if (all.filter((phase) => !phase.done()).length === 0) return;
  requireTools(findTools({ native: native || tests }));
  const release = endChildrenWithUs();
  try {
    await withLock(async () => {
      for (const [index, phase] of all.entries()) {
        if (!phase.done()) await runPhase(phase, `${index + 1}/${all.length}`, log);
      }
    }, log);
  } finally {
    release();
  }
}

/**
 * The addon is there when this resolves: an installed package sets it up on first use, since its sources never change;
 * a checkout is only told how, since who edits sources chooses when to build. Rejects with a SetupError.
 * @param {(line: string) => void} [log]
 */
export async function ensureAddon(log = console.error) {
  if (inCheckout()) return void addonPath();
  if (torchDirectory() !== null && existsSync(addonLocation())) return;
  log("first use of the native part: libtorch and the addon are set up now, once (a few minutes)");
  await setup({ log });
}

/** @param {string} path @returns {number} */
function sizeOf(path) {
  const entries = statSync(path).isDirectory() ? readdirSync(path, { recursive: true, withFileTypes: true }) : null;
  if (entries === null) return statSync(path).size;
  const files = entries.filter((entry) => entry.isFile());
  return files.reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0);
}

/** Tools, versions, what is set up and what the cache holds; starts and changes nothing. */
export function doctorReport() {
  const cache = cacheDirectory();
  const torch = torchDirectory();
  const addon = torch === null ? null : addonLocation();
  const names = existsSync(cache) ? readdirSync(cache).sort() : [];
  return {
    tools: findTools({ native: true }).map(({ name, version, command, needs }) => ({ name, version, command, needs })),
    torch: { version: torchVersion, path: torch },
    addon: { path: addon, present: addon !== null && existsSync(addon) },
    python: { path: pythonPath(), present: existsSync(pythonPath()) },
    cache: {
      path: cache,
      entries: names.map((name) => ({ path: join(cache, name), bytes: sizeOf(join(cache, name)) })),
    },
  };
}

/**
 * Removes what set-up and tests keep outside the checkout, and nothing else that may lie in that folder.
 * @param {(line: string) => void} [log]
 */
export function removeCaches(log = console.error) {
  const cache = cacheDirectory();
  const ours = /^(addon-|build-|aside-|cuda-headers|python-torch-|vscode-web|test-(agents|vllm)$|setup\.log$|lock$)/;
  const names = (existsSync(cache) ? readdirSync(cache) : []).filter((name) => ours.test(name));
  for (const path of names.map((name) => join(cache, name))) {
    rmSync(path, { recursive: true, force: true });
    log(`removed ${path}`);
  }
  if (names.length === 0) log(`nothing to remove in ${cache}`);
}
