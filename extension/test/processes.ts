// No process outlives the tier: whatever VS Code starts inherits a mark in its environment.
import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { scale } from "./vscode-web/setup.ts";

export const markName = "MOLT_EDITOR_TEST";

interface Survivor {
  pid: number;
  command: string;
}

/** Given a moment to leave, they must be gone. Ends those that are not, and returns them. */
export async function endSurvivors(mark: string): Promise<Survivor[]> {
  const deadline = Date.now() + 10_000 * scale;
  while (marked(mark).length > 0 && Date.now() < deadline) await sleep(100);
  const left = marked(mark);
  for (const { pid } of left) endProcess(pid);
  return left;
}

/** Those whose command line holds `text`, at once and with what they started. */
export async function endMarked(mark: string, text: string): Promise<void> {
  for (const { pid } of marked(mark, text)) endProcess(pid);
  const deadline = Date.now() + 20_000 * scale;
  while (marked(mark, text).length > 0) {
    if (Date.now() > deadline) throw new Error(`waited 20 s for the end of ${marked(mark, text)[0]!.command}`);
    await sleep(100);
  }
}

/** Processes that carry the mark and whose command line holds `text`. */
export function marked(mark: string, text = ""): Survivor[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        if (!readFileSync(`/proc/${name}/environ`, "utf8").includes(`${markName}=${mark}`)) return [];
        return [{ pid: Number(name), command: readFileSync(`/proc/${name}/cmdline`, "utf8").replaceAll("\0", " ") }];
      } catch {
        return []; // ended meanwhile, or not ours to read
      }
    })
    .filter(({ command }) => command.includes(text));
}

function endProcess(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // Gone meanwhile.
  }
}
