import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readSync, writeFileSync } from "node:fs";
import { StringDecoder } from "node:string_decoder";
import type { RunEvent, TimedEvent } from "./events.ts";

/** The run's one log: appends to `events.ndjson` and tells whoever listens (the terminal). */
export class EventLog {
  private readonly path: string;
  /** Opened by the first event, for as long as the process lives. */
  private file: number | null = null;
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
    this.file ??= openSync(this.path, "a");
    writeFileSync(this.file, `${JSON.stringify(timed)}\n`);
    for (const listener of this.listeners) listener(timed);
  }
}

/** A killed writer may leave half a line; appending behind it would spoil the next event too. */
function dropTornLine(path: string): void {
  if (!existsSync(path)) return;
  const file = openSync(path, "r+");
  try {
    const { size } = fstatSync(file);
    let end = size;
    const byte = Buffer.alloc(1);
    while (end > 0 && readSync(file, byte, 0, 1, end - 1) === 1 && byte[0] !== newline) end--;
    if (end < size) ftruncateSync(file, end);
  } finally {
    closeSync(file);
  }
}

const newline = 0x0a;

/** All whole events of a log, oldest first. Read in pieces: a long run's log is longer than a string can be. */
export function* readEvents(path: string): Generator<TimedEvent> {
  const file = openSync(path, "r");
  try {
    const chunk = Buffer.alloc(1 << 20);
    const decoder = new StringDecoder("utf8");
    let rest = "";
    for (let read = readSync(file, chunk); read > 0; read = readSync(file, chunk)) {
      const lines = (rest + decoder.write(chunk.subarray(0, read))).split("\n");
      rest = lines.pop()!;
      for (const line of lines) if (line !== "") yield JSON.parse(line) as TimedEvent;
    }
  } finally {
    closeSync(file);
  }
}
