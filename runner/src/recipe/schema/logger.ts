import { z } from "zod";
import { key, optionalKey, positiveInteger, section } from "./key.ts";

const name = z.string().min(1);

export const logger = section("Where a run's figures go beside its own log: nowhere unless it is named here.", {
  logging_steps: key(positiveInteger, 1, "Sinks get every n-th train step.", { unit: "steps" }),
  rollout_steps: key(z.int().min(0), 1, "Rollouts of every n-th train step are stored; 0 stores none.", {
    unit: "steps",
  }),
  tensorboard_dir: optionalKey(name, "Folder of TensorBoard's event files; null writes none.", {
    path: "working directory",
  }),
  prometheus_port: optionalKey(z.int().min(1).max(65535), "Port of /metrics for Prometheus; null serves none."),
  prometheus_host: key(z.string().min(1), "127.0.0.1", "Address that /metrics listens on; it asks for no password."),
  wandb: section("Weights & Biases, through its Python package, which reads its key from WANDB_API_KEY.", {
    project: optionalKey(name, "Project to send figures to; null sends none."),
    org: optionalKey(name, "Entity that owns the project; null is the key's own."),
    group: optionalKey(name, "Group to show the run in."),
    python: key(z.string().min(1), "python3", "A Python that has the wandb package."),
  }),
});
