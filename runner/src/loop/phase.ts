import type { EventLog } from "../telemetry/log.ts";

/** Between two `phase` events, by which the summary tells where the seconds went. */
export async function phase<T>(
  log: EventLog,
  name: string,
  body: () => Promise<T>,
  detail?: (result: T) => string,
): Promise<T> {
  const startedAt = performance.now();
  log.emit({ type: "phase", name, state: "begin" });
  const result = await body();
  const seconds = (performance.now() - startedAt) / 1000;
  log.emit({ type: "phase", name, state: "end", seconds, detail: detail?.(result) });
  return result;
}
