import { deferred } from "../deferred.ts";
import type { EngineOptions } from "../engines/embedded/engine.ts";
import { endWithParent } from "../launchers/child.ts";
import { requireAddon } from "./setup.ts";

export type ServeOptions = Pick<EngineOptions, "model"> & Partial<EngineOptions>;

export const serveDefaults: Omit<EngineOptions, "model"> = {
  init: "weights",
  host: "127.0.0.1",
  port: 8000,
  seed: 0,
  dtype: "float32",
  maxNumSeqs: 256,
  pageSize: 16,
  maxModelLen: null,
  cacheTokens: null,
  threads: null,
  apiKey: null,
  maxQueue: 16384,
  maxBody: 64,
  enableReturnRoutedExperts: false,
};

/**
 * Serves until SIGINT or SIGTERM; started by a run, until the run's end, which also decides what Ctrl-C means. Rejects
 * when the sampler fails.
 */
export async function serveCommand(options: ServeOptions, version: string): Promise<void> {
  const { promise: stopped, resolve } = deferred();
  const stop = () => resolve();
  if (process.env.MOLT_CHILD !== undefined) endWithParent(stop);
  else {
    process.on("SIGINT", stop).once("SIGTERM", stop);
    await requireAddon();
  }
  // It loads the addon.
  const { startEngine } = await import("../engines/embedded/engine.ts");
  const apiKey = options.apiKey ?? process.env.MOLT_API_KEY ?? null;
  const engine = await startEngine({ ...serveDefaults, ...options, apiKey }, version);
  console.log(JSON.stringify({ listening: engine.url }));
  try {
    await Promise.race([stopped, engine.failed]);
  } finally {
    await engine.close();
  }
}
