import { z } from "zod";
import { key, optionalKey, positiveInteger, section } from "./key.ts";

export const launcher = section("How the processes of a run come to their machines.", {
  kind: key(z.enum(["local", "ray", "slurm"]), "local", "What starts the nodes: none, this machine alone; Ray; Slurm."),
  address: key(z.string().min(1), "http://127.0.0.1:8265", "URL of Ray's dashboard, which serves its Jobs API."),
  host: optionalKey(z.string().min(1), "Where nodes reach the controller; null is its machine's own address."),
  command: optionalKey(
    z.array(z.string().min(1)).min(1),
    "Words that run molt-runner on a node; null is this one, at the same path.",
  ),
  args: key(z.array(z.string()), [], "Further words for sbatch: partition, account, time limit, GPUs of a node."),
  devices_per_node: optionalKey(
    positiveInteger,
    "Devices of a node, for ranks and engines; null is run.device's number, and as many as needed on a CPU.",
    { unit: "devices" },
  ),
  start_timeout: key(positiveInteger, 600, "For all nodes to have joined.", { unit: "seconds" }),
  save_before: key(positiveInteger, 120, "How long before a job's time limit Slurm tells it to save and queue again.", {
    unit: "seconds",
  }),
});
