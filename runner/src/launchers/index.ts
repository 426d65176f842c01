import { randomBytes } from "node:crypto";
import { networkInterfaces } from "node:os";
import type { Recipe } from "../recipe/index.ts";
import { inferVerb } from "../recipe/load.ts";
import { placementOf } from "../recipe/planner/placement.ts";
import type { EventLog } from "../telemetry/log.ts";
import { cliPath } from "./child.ts";
import { type Cluster, localCluster, RemoteCluster } from "./cluster.ts";
import { wantsGpus } from "./devices.ts";
import { RayLauncher } from "./ray.ts";
import { SlurmLauncher } from "./slurm.ts";

/** The machines that a recipe asks for, on their way: `ready` waits for them. */
export async function openCluster(
  recipe: Recipe,
  runId: string,
  log: EventLog,
  verb = inferVerb(recipe),
): Promise<Cluster> {
  const { launcher, run } = recipe;
  if (launcher.kind === "local") return localCluster;
  // Engines there listen to a network, and want to be shown a key.
  process.env.MOLT_API_KEY ||= randomBytes(24).toString("base64url");
  const command = launcher.command ?? [process.execPath, cliPath()];
  return RemoteCluster.start({
    nodes: placementOf(recipe, verb).nodes,
    launcher: launcher.kind === "ray" ? new RayLauncher(launcher.address, command, runId) : new SlurmLauncher(command),
    needsGpus: wantsGpus(recipe),
    host: launcher.host ?? ownAddress(),
    startSeconds: launcher.start_timeout,
    maxRestarts: run.max_restarts,
    emit: (event) => log.emit(event),
  });
}

/** The first that is not for this machine alone. */
function ownAddress(): string {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.find(({ family, internal }) => family === "IPv4" && !internal)?.address ?? "127.0.0.1";
}
