import { appendFileSync, existsSync, readFileSync, truncateSync } from "node:fs";
import type { RunEvent, TimedEvent } from "./events.ts";

/** The run's one log: appends to `events.ndjson` and tells whoever listens (the terminal). */
export class EventLog {
  private readonly path: string;
  private readonly listeners: ((event: TimedEvent) => void)[] = [];

  constructor(path: string) {
    this.path = path;
    dropTornLine(path);
  }

  onEvent(listener: (event: TimedEvent) => void): void {
    this.listeners.push(listener);
  }

  emit(event: RunEvent): void {
    const timed = { time: Date.now() / 1000, ...event };
    appendFileSync(this.path, `${JSON.stringify(timed)}\n`);
    for (const listener of this.listeners) listener(timed);
  }
}

/** A killed writer may leave half a line; appending behind it would spoil the next event too. */
function dropTornLine(path: string): void {
  if (!existsSync(path)) return;
  const bytes = readFileSync(path);
  const end = bytes.lastIndexOf(0x0a) + 1;
  if (end < bytes.length) truncateSync(path, end);
}

/** All whole events of a log, oldest first. */
export function readEvents(path: string): TimedEvent[] {
  const text = readFileSync(path, "utf8");
  const lines = text.slice(0, text.lastIndexOf("\n") + 1).split("\n");
  return lines.filter((line) => line !== "").map((line) => JSON.parse(line) as TimedEvent);
}
