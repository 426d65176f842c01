import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { join } from "node:path";
import { StringDecoder } from "node:string_decoder";
import { ZodError } from "zod";
import { messageOf, RunnerError } from "../errors.ts";
import { withoutSecrets } from "../secret.ts";
import { eventVersion, type RunEvent, type TimedEvent, timedEvent } from "./events.ts";
import { applyEvent, foldRun, type RunState } from "./fold.ts";

type Listener = (event: TimedEvent) => void;

const flushMs = 100;
/** Of events that wait for a disk that takes none; what comes then is lost. */
const mostUnwrittenBytes = 32 * 2 ** 20;

/**
 * The run's one log: appends to `events.ndjson`, many events at once, and tells whoever listens (the terminal, sinks).
 * Neither a disk that takes nothing nor a listener that throws stops a run: either is warned of once.
 */
export class EventLog {
  /** Opened by the first event, for as long as the process lives. */
  private file: number | null = null;
  private lines: string[] = [];
  private unwritten: Buffer = Buffer.alloc(0);
  private timer: NodeJS.Timeout | null = null;
  private isFailing = false;
  private lost = 0;
  private readonly listeners: Listener[] = [];
  private readonly broken = new Set<Listener>();
  private folded: RunState | null = null;

  constructor(private readonly path: string) {
    dropTornLine(path);
  }

  onEvent(listener: Listener): void {
    this.listeners.push(listener);
  }

  emit(event: RunEvent): void {
    const whole = { time: Date.now() / 1000, ...event };
    const text = JSON.stringify(whole);
    const line = withoutSecrets(text);
    const timed: TimedEvent = line === text ? whole : JSON.parse(line);
    if (this.unwritten.length > mostUnwrittenBytes) this.lost++;
    else this.lines.push(`${line}\n`);
    for (const listener of this.listeners) this.tell(listener, timed);
    if (event.type === "failed" || event.type === "ended") this.flush();
    else this.timer ??= setTimeout(() => this.flush(), flushMs);
  }

  /** Writes what waits. The timer does, and who needs it on the disk now. */
  flush(): void {
    if (this.timer) clearTimeout(this.timer);
    this.timer = null;
    this.unwritten = Buffer.concat([this.unwritten, Buffer.from(this.lines.splice(0).join(""))]);
    try {
      this.file ??= openSync(this.path, "a");
      while (this.unwritten.length > 0) {
        this.unwritten = this.unwritten.subarray(writeSync(this.file, this.unwritten));
      }
      this.isFailing = false;
      if (this.lost > 0) this.warn(`${this.lost} events are missing: they could not be written`);
      this.lost = 0;
    } catch (error) {
      if (!this.isFailing) this.warn(`events wait in memory until they can be written: ${messageOf(error)}`);
      this.isFailing = true;
    }
  }

  /** All events so far, those of earlier processes included. */
  read(): Iterable<TimedEvent> {
    this.flush();
    return existsSync(this.path) ? readEvents(this.path) : [];
  }

  /** The run so far; it goes on with the events. */
  get run(): RunState {
    if (this.folded) return this.folded;
    const run = foldRun(this.read());
    this.onEvent((event) => applyEvent(run, event));
    this.folded = run;
    return run;
  }

  private tell(listener: Listener, event: TimedEvent): void {
    try {
      listener(event);
    } catch (error) {
      if (this.broken.has(listener)) return;
      this.broken.add(listener);
      this.warn(`somebody who follows the events fails at them: ${messageOf(error)}`);
    }
  }

  private warn(message: string): void {
    this.emit({ type: "warning", message });
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

/** The run in a directory, as its log tells it. */
export function readRun(directory: string): RunState {
  return foldRun(readEvents(join(directory, "events.ndjson")));
}

/**
 * All whole events of a log, oldest first. Read in pieces: a long run's log is longer than a string can be. It begins
 * at `position`, in bytes, and moves it behind each event: who follows a log gives it again.
 */
export function* readEvents(
  path: string,
  position: { offset: number; line?: number } = { offset: 0 },
): Generator<TimedEvent> {
  const file = openSync(path, "r");
  try {
    const chunk = Buffer.alloc(1 << 20);
    const decoder = new StringDecoder("utf8");
    let rest = "";
    let at = position.offset;
    for (let read = 1; read > 0; at += read) {
      read = readSync(file, chunk, 0, chunk.length, at);
      const lines = (rest + decoder.write(chunk.subarray(0, read))).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        position.offset += Buffer.byteLength(line) + 1;
        position.line = (position.line ?? 0) + 1;
        if (line !== "") yield parseEvent(line, `${path}:${position.line}`);
      }
    }
  } finally {
    closeSync(file);
  }
}

function parseEvent(line: string, where: string): TimedEvent {
  try {
    const event = JSON.parse(line);
    if (event.version > eventVersion) throw new Error(`it is of version ${event.version}, not ${eventVersion}`);
    return timedEvent.parse(event);
  } catch (error) {
    const [issue] = error instanceof ZodError ? error.issues : [];
    const what = issue ? `${issue.path.join(".")}: ${issue.message}` : messageOf(error);
    const fix = "take the line out, or look at the run with the molt-runner that made it";
    throw new RunnerError(`${where}: not an event: ${what}`, { fix });
  }
}
