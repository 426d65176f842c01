import { z } from "zod";
import { plannedKey, section } from "./key.ts";

export const launcher = section("How the processes of a run come to their machines.", {
  kind: plannedKey(z.enum(["local", "ray", "slurm"]), "local", {
    description: "What starts the nodes: this machine alone, a Ray cluster, or a Slurm allocation.",
  }),
});
