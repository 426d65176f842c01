import { join } from "node:path";
import { messageOf, RunnerError, usageError } from "../../errors.ts";
import type { Recipe } from "../../recipe/schema.ts";
import type { TimedEvent } from "../events.ts";
import type { EventLog } from "../log.ts";
import { openPrometheus } from "./prometheus.ts";
import { openTensorBoard } from "./tensorboard.ts";
import { openWandb } from "./wandb.ts";

/** Gets every event of a run; `scalars`: the finite figures of a step or an eval, such as `train/reward`. */
export interface Sink {
  take(event: TimedEvent, scalars: { step: number; values: Record<string, number> } | null): void;
  close(): Promise<unknown>;
}

export type Fail = (error: unknown) => void;

/**
 * Opens the sinks that the recipe names: one that cannot be opened is an error, before anything trains; one that fails
 * later is warned of once, and what it misses is counted. Resolves with what closes them.
 */
export async function startSinks(recipe: Recipe, run: { path: string; runId: string }, log: EventLog) {
  const { logging_steps: every, tensorboard_dir: folder, prometheus_port: port, wandb } = recipe.logger;
  const fix = "change the recipe's logger section, or leave that sink out";
  const closers: (() => Promise<void>)[] = [];
  const add = async (name: string, open: (fail: Fail) => Promise<Sink>) => {
    let lost: number | null = null;
    const warn = (message: string) => log.emit({ type: "warning", message: `${name}: ${message}` });
    const fail = (error: unknown) => {
      if (lost === null) warn(`${messageOf(error)}; training goes on without it`);
      lost ??= 0;
    };
    const sink = await open(fail).catch((error) => {
      throw error instanceof RunnerError ? error : usageError(`${name} cannot be opened: ${messageOf(error)}`, { fix });
    });
    log.onEvent((event) => {
      const scalars = scalarsOf(event, every);
      if (lost === null) sink.take(event, scalars);
      else if (scalars) lost++;
    });
    closers.push(async () => {
      await sink.close().catch(fail);
      if (lost) warn(`${lost} steps and evals are missing there`);
    });
  };
  if (folder !== null) await add("TensorBoard", (fail) => openTensorBoard(join(folder, run.runId), fail));
  if (port !== null) await add("Prometheus", () => openPrometheus(recipe.logger.prometheus_host, port));
  if (wandb.project !== null) await add("W&B", (fail) => openWandb(recipe, run, fail));
  return async () => {
    await Promise.all(closers.map((close) => close()));
  };
}

function scalarsOf(event: TimedEvent, every: number) {
  if (event.type !== "eval" && (event.type !== "step" || event.step % every !== 0)) return null;
  const { step, metrics } = event;
  const kinds = event.type === "step" ? { train: metrics, seconds: event.seconds } : { eval: metrics };
  const all = Object.entries(kinds).flatMap(([kind, values = {}]) =>
    Object.entries(values).map(([name, value]): [string, number] => [`${kind}/${name}`, value]),
  );
  return { step, values: Object.fromEntries(all.filter(([, value]) => Number.isFinite(value))) };
}
