import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { withDeadline } from "../deadline.ts";
import { ExitCode, RunnerError } from "../errors.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import type { Recipe } from "../recipe/index.ts";
import { cliPath } from "./child.ts";

const beginSeconds = 120;

/** This command line in a process of its own, which goes on without this one; waits until its run has begun. */
export async function startDetached({ dir, name }: Recipe["run"], json: boolean): Promise<number> {
  mkdirSync(dir, { recursive: true });
  const log = join(dir, `${name}-${Date.now()}.log`);
  const file = openSync(log, "wx");
  const words = [cliPath(), ...process.argv.slice(2).filter((word) => word !== "--detach")];
  const child = spawn(process.execPath, words, { detached: true, stdio: ["ignore", file, file, "ipc"] });
  closeSync(file);
  const begun = once(child, "message") as Promise<[{ run: string }]>;
  const first = Promise.race([begun, once(child, "exit").then(() => [null])]);
  const [message] = await withDeadline(first, beginSeconds, `the run to begin, as ${log} tells`);
  if (message === null) {
    const said = readFileSync(log, "utf8").trim().slice(-4000);
    throw new RunnerError(`the run ended before it began; the end of ${displayPath(log)}:\n${said}`);
  }
  child.disconnect();
  child.unref();
  const said = { process: child.pid, log: displayPath(log), run: message.run };
  const id = basename(message.run);
  const text = `run ${id} has begun in process ${child.pid}, which prints to ${said.log}\n  molt-runner watch ${id}`;
  console.log(json ? JSON.stringify(said) : text);
  return ExitCode.done;
}
