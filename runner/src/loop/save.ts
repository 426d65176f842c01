import { messageOf } from "../errors.ts";
import type { RankGroup } from "../trainer/handle.ts";
import { bestCheckpoint, type LoopState, pruneCheckpoints, saveCheckpoint } from "./checkpoint.ts";
import type { RunOptions } from "./run-options.ts";

/**
 * A checkpoint of `state` and what the ranks hold, `onSnapshot` once they have a copy; `flush` writes what is its.
 * One that cannot be written is an alarm: those before it stay, and training goes on. Never rejects.
 */
export async function saveRun(
  { log, recipe, directory }: RunOptions,
  ranks: RankGroup,
  state: LoopState,
  { flush = async () => {}, onSnapshot = () => {} } = {},
): Promise<void> {
  const { checkpoints } = directory;
  const { max_num: count, max_mem: gigabytes, best_metric_key: metric } = recipe.ckpt;
  const { step } = state;
  const startedAt = performance.now();
  // What was consumed before it is told before it.
  log.flush();
  try {
    const saved = await saveCheckpoint(checkpoints, state, async (aside) => {
      await ranks.all("saveCheckpoint", { directory: aside });
      onSnapshot();
      await flush();
      await ranks.all("checkpointWritten", {});
    });
    log.emit({ type: "checkpoint", step, directory: saved, seconds: (performance.now() - startedAt) / 1000 });
    log.flush();
    const bytes = gigabytes === null ? Number.POSITIVE_INFINITY : gigabytes * 1e9;
    const best = bestCheckpoint(checkpoints, log.run, metric)?.step;
    pruneCheckpoints(checkpoints, step, { count, bytes, best }, (message) => log.emit({ type: "warning", message }));
  } catch (error) {
    const alarm = { type: "health", rule: "checkpoint", severity: "alarm", key: "ckpt.save_steps" } as const;
    log.emit({ ...alarm, step, message: messageOf(error), rolloutIds: [] });
  } finally {
    onSnapshot();
  }
}
