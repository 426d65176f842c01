// One set-up at a time for a cache: the second waits, then finds the work done.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { cacheDirectory, SetupError } from "./locate.mjs";

const deadlineMinutes = 20;

/** @param {string} folder */
function holder(folder) {
  try {
    return Number(readFileSync(join(folder, "pid"), "utf8")) || null;
  } catch {
    return null;
  }
}

/** @param {number} pid */
function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
}

/** @param {string} folder */
function take(folder) {
  try {
    mkdirSync(folder);
  } catch (error) {
    if (error.code === "EEXIST") return false;
    throw error;
  }
  writeFileSync(join(folder, "pid"), String(process.pid));
  return true;
}

/**
 * Runs `body` while holding the cache's lock. A lock whose process is dead, or that stays without a process id for two
 * looks (it died between the two writes), is taken over.
 * @template T @param {() => Promise<T>} body @param {(line: string) => void} log @returns {Promise<T>}
 */
export async function withLock(body, log) {
  const folder = join(cacheDirectory(), "lock");
  mkdirSync(cacheDirectory(), { recursive: true });
  const started = Date.now();
  for (let looks = 0, nameless = 0; !take(folder); looks++) {
    const pid = holder(folder);
    nameless = pid === null ? nameless + 1 : 0;
    if (pid === null ? nameless > 2 : !alive(pid)) rmSync(folder, { recursive: true, force: true });
    if (looks === 0) log(`waiting for another set-up${pid === null ? "" : ` (process ${pid})`}`);
    if (Date.now() - started > deadlineMinutes * 60_000) {
      throw new SetupError(
        `waited ${deadlineMinutes} minutes for the set-up of process ${pid}`,
        `end it, or remove ${folder}`,
      );
    }
    await sleep(500);
  }
  const release = () => rmSync(folder, { recursive: true, force: true });
  process.once("exit", release);
  try {
    return await body();
  } finally {
    process.removeListener("exit", release);
    release();
  }
}
