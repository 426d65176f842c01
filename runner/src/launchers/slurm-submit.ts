import { join } from "node:path";
import { replaceFile } from "../files.ts";
import { inferVerb } from "../recipe/load.ts";
import { placementOf } from "../recipe/planner/placement.ts";
import type { Recipe } from "../recipe/schema.ts";
import { cliPath } from "./child.ts";
import { wantsGpus } from "./devices.ts";
import { ask } from "./slurm-job.ts";
import { shellWord } from "./words.ts";

/**
 * Hands in the job that is to go on with a run, at first and each time that Slurm queues it again: after a node failed,
 * after a preemption, and when the run was told by SIGUSR2 to save before its time limit.
 */
export function submitRun(directory: string, runId: string, recipe: Recipe): string {
  const { launcher } = recipe;
  const { nodes, perNode } = placementOf(recipe, inferVerb(recipe));
  const words = [
    // Else its one task a node has one CPU.
    ...["--parsable", `--job-name=${runId}`, `--nodes=${nodes}`, "--ntasks-per-node=1", "--exclusive", "--requeue"],
    ...["--open-mode=append", `--output=${join(directory, "slurm.log")}`, `--signal=B:USR2@${launcher.save_before}`],
    ...(wantsGpus(recipe) ? [`--gpus-per-node=${launcher.devices_per_node ?? perNode}`] : []),
    ...launcher.args,
  ];
  const command = launcher.command ?? [process.execPath, cliPath()];
  // In the shell's place: signals for the batch script are the controller's.
  const script = `#!/bin/sh\nexec ${[...command, "resume", directory].map(shellWord).join(" ")}\n`;
  const [id] = ask("sbatch", words, script).trim().split(";");
  replaceFile(join(directory, "job.json"), JSON.stringify({ slurm: id }));
  return id!;
}
