import { z } from "zod";
import { plannedKey, section } from "./key.ts";

export const launcher = section("How the processes of a run come to their machines.", {
  kind: plannedKey(z.enum(["local", "ray", "slurm"]), "local", "What starts the nodes."),
});
