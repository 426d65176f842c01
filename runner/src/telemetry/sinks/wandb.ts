import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import { withDeadline } from "../../deadline.ts";
import { usageError } from "../../errors.ts";
import type { Recipe } from "../../recipe/schema.ts";
import type { Fail, Sink } from "./index.ts";

/** W&B's protocol is its package's own, so that speaks it: fed with JSON lines until its input ends, as when we die. */
const program = `
import json, sys, wandb
run = wandb.init(**json.loads(sys.stdin.readline()))
run.define_metric("*", step_metric="step")
for line in sys.stdin:
    run.log(json.loads(line))
run.finish()
`;

export async function openWandb(
  { logger }: Recipe,
  { path, runId }: { path: string; runId: string },
  fail: Fail,
): Promise<Sink> {
  const { project, org, group, python } = logger.wandb;
  const found = spawnSync(python, ["-c", "import wandb"], { timeout: 60_000, encoding: "utf8" });
  if (found.status !== 0) {
    const why = found.error?.message ?? found.stderr.trim().split("\n").at(-1);
    const fix = `install it (${python} -m pip install wandb), name another Python, or leave logger.wandb.project out`;
    throw usageError(`logger.wandb.python: ${python} cannot load the wandb package (${why})`, { fix });
  }
  // Of a group of its own: Ctrl-C is the controller's, which closes it last.
  const child = spawn(python, ["-c", program], { stdio: ["pipe", "ignore", "pipe"], detached: true });
  let said = "";
  child.stderr.on("data", (text: Buffer) => {
    said = `${said}${text}`.slice(-2000);
  });
  // A pipe breaks when the child ends, whose last line says why.
  child.stdin.on("error", () => {});
  const closed = once(child, "close");
  closed.then(([code]) => code !== 0 && fail(said.trim().split("\n").at(-1)), fail);
  const send = (message: unknown) => child.stdin.write(`${JSON.stringify(message)}\n`);
  // As the run's directory keeps it: what comes from the environment stays there.
  const config = parse(readFileSync(join(path, "recipe.yaml"), "utf8"));
  send({ project, entity: org, group, id: runId, name: runId, resume: "allow", dir: path, config });
  return {
    take(_, scalars) {
      if (scalars) send({ ...scalars.values, step: scalars.step });
    },
    close() {
      child.stdin.end();
      return withDeadline(closed, 60, "W&B to take the last figures").finally(() => child.kill("SIGKILL"));
    },
  };
}
