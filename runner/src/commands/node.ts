import { ExitCode, usageError } from "../errors.ts";
import { joinController } from "../launchers/join.ts";

/** One machine of a cluster, for as long as the run lasts that it joins; MOLT_TOKEN holds what the run let it in by. */
export async function nodeCommand({ join }: { join: string }): Promise<number> {
  const { MOLT_TOKEN: token } = process.env;
  if (!token) throw usageError("MOLT_TOKEN is not set: a node joins by a token of its run, which launchers hand it");
  // Processes that it starts get what they need from the controller.
  delete process.env.MOLT_TOKEN;
  const left = new AbortController();
  process.on("SIGINT", () => left.abort());
  // Slurm sends it to all processes of a job that is to save first: the controller lets its nodes go.
  process.on("SIGTERM", () => process.env.SLURM_JOB_ID ?? left.abort());
  await joinController(join, token, left.signal);
  return left.signal.aborted ? ExitCode.interrupted : ExitCode.done;
}
