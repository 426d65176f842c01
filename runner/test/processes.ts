/** What tests of processes share. */
import { readdirSync, readFileSync } from "node:fs";
import { deadlineMs } from "../src/deadline.ts";

/** False for a zombie too: it has ended, whoever is to notice. */
export function isAlive(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

/** Its words, between blanks; "" once it has ended. */
export function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
  } catch {
    return "";
  }
}

/** Process ids, in the order of their start; none once it has ended. */
export function childrenOf(pid: number): number[] {
  const read = <T>(what: () => T, none: T) => {
    try {
      return what();
    } catch {
      return none; // it has ended
    }
  };
  const threads = read(() => readdirSync(`/proc/${pid}/task`), []);
  return threads.flatMap((thread) => {
    const pids = read(() => readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8").trim(), "");
    return pids === "" ? [] : pids.split(" ").map(Number);
  });
}

type Probed<T> = T | undefined | false;

/** What `probe` gives once it is true; a wait of `seconds` at most, which names `what`. */
export async function until<T>(what: string, probe: () => Probed<T> | Promise<Probed<T>>, seconds = 60): Promise<T> {
  const end = Date.now() + deadlineMs(seconds);
  while (Date.now() < end) {
    const value = await probe();
    if (value) return value;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`waited ${seconds} s for ${what}`);
}
