import { spawn } from "node:child_process";
import { once } from "node:events";
import { deadlineMs } from "../deadline.ts";
import { messageOf, RunnerError, usageError } from "../errors.ts";
import type { Join, Launched, Launcher } from "./cluster.ts";
import { ask } from "./slurm-job.ts";

const leaveSeconds = 15;

/** Within a job's allocation: a step on each of its nodes. */
export class SlurmLauncher implements Launcher {
  constructor(private readonly command: string[]) {}

  async launch(slot: number, { url, env }: Join): Promise<Launched> {
    const host = hostsOfJob()[slot];
    if (host === undefined) throw new RunnerError(`the Slurm job has no node ${slot}: give it more (--nodes)`);
    // Its processes get all of the node, beside the step of the controller.
    const step = ["--nodes=1", "--ntasks=1", `--nodelist=${host}`, "--overlap", "--input=none", "--export=ALL"];
    const words = [...step, ...this.command, "node", "--join", url];
    // Of a group of its own, as `Child`: an interrupt at the terminal is the controller's.
    const child = spawn("srun", words, {
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
    });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        said = (said + text).slice(-2000);
      });
    }
    const ended = once(child, "close").then(
      ([code, signal]) => `srun on ${host} ended with ${signal ?? code}: ${said.trim()}`,
      (error) => `srun did not start: ${messageOf(error)}`,
    );
    const stop = async () => {
      const timer = setTimeout(() => child.kill("SIGKILL"), deadlineMs(leaveSeconds));
      await ended;
      clearTimeout(timer);
    };
    return { ended, stop };
  }
}

function hostsOfJob(): string[] {
  const { SLURM_JOB_NODELIST: list } = process.env;
  if (list === undefined) {
    throw usageError("launcher.kind slurm needs a job's allocation", { fix: "salloc --nodes N molt-runner …" });
  }
  return ask("scontrol", ["show", "hostnames", list]).trim().split("\n");
}
