import { type EngineOptions, startEngine } from "../engines/embedded/engine.ts";
import { endWithParent } from "../launchers/child.ts";

export type ServeOptions = Pick<EngineOptions, "model"> & Partial<EngineOptions>;

export const serveDefaults: Omit<EngineOptions, "model"> = {
  init: "weights",
  host: "127.0.0.1",
  port: 8000,
  seed: 0,
  maxNumSeqs: 256,
  pageSize: 16,
  maxModelLen: null,
  cacheTokens: null,
  threads: null,
};

/**
 * Serves until SIGINT or SIGTERM; started by a run, until the run's end, which also decides what Ctrl-C means. Rejects
 * when the sampler fails.
 */
export async function serveCommand(options: ServeOptions, version: string): Promise<void> {
  let stop = () => {};
  const stopped = new Promise<void>((resolve) => {
    stop = resolve;
  });
  const isChild = process.env.MOLT_CHILD !== undefined;
  process.on("SIGINT", isChild ? () => {} : stop);
  process.once("SIGTERM", stop);
  if (isChild) endWithParent(stop);
  const engine = await startEngine({ ...serveDefaults, ...options }, version);
  console.log(JSON.stringify({ listening: engine.url }));
  try {
    await Promise.race([stopped, engine.failed]);
  } finally {
    await engine.close();
  }
}
