/** Stops in an agent as an editor's debugger does: Chrome's protocol to the process, through it to its threads. */
import { SourceMap } from "node:module";
import { WebSocket } from "ws";
import { withDeadline } from "../src/deadline.ts";

interface Paused {
  callFrames: { location: { lineNumber: number; columnNumber: number }; functionName: string }[];
  hitBreakpoints: string[];
}

/** Lines from 0. */
interface Entry {
  originalSource: string;
  originalLine: number;
}

interface Script {
  scriptId: string;
  url: string;
  sourceMapURL: string;
}

// biome-ignore lint/suspicious/noExplicitAny: the protocol's many shapes.
type Json = any;

/** Where a thread stopped, in the file that the user wrote. */
export interface Stop {
  file: string;
  /** From 1. */
  line: number;
  functionName: string;
}

/** One target of the protocol: the process, or a thread of it. */
class Session {
  private nextId = 1;
  private readonly answers = new Map<number, (result: Json) => void>();
  private readonly listeners = new Map<string, (params: Json) => void>();
  private readonly write: (text: string) => void;

  constructor(write: (text: string) => void) {
    this.write = write;
  }

  send(method: string, params: Json = {}): Promise<Json> {
    const id = this.nextId++;
    this.write(JSON.stringify({ id, method, params }));
    return new Promise((resolve) => this.answers.set(id, resolve));
  }

  on(event: string, listener: (params: Json) => void): void {
    this.listeners.set(event, listener);
  }

  receive(text: string): void {
    const { id, result, method, params } = JSON.parse(text);
    if (id !== undefined) this.answers.get(id)?.(result);
    else this.listeners.get(method)?.(params);
  }
}

/**
 * Attaches to a process that waits for its debugger (`--inspect-brk`), sets one breakpoint at `line` of `file` in
 * whichever thread loads it through a source map, and lets all go on once it was hit.
 */
export async function stopAt(debuggerUrl: string, file: string, line: number): Promise<Stop> {
  const socket = new WebSocket(debuggerUrl);
  await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));
  const main = new Session((text) => socket.send(text));
  socket.on("message", (data) => main.receive(data.toString()));
  const threads = new Map<string, Session>();
  const stopped = new Promise<Stop>((resolve) => {
    main.on("NodeWorker.attachedToWorker", ({ sessionId }) => {
      const send = (message: string) => main.send("NodeWorker.sendMessageToWorker", { sessionId, message });
      const thread = new Session(send);
      threads.set(sessionId, thread);
      debugThread(thread, file, line, resolve);
    });
  });
  main.on("NodeWorker.receivedMessageFromWorker", ({ sessionId, message }) => threads.get(sessionId)?.receive(message));
  await main.send("NodeWorker.enable", { waitForDebuggerOnStart: true });
  await main.send("Runtime.runIfWaitingForDebugger");
  try {
    return await withDeadline(stopped, 60, `the breakpoint at ${file}:${line}`);
  } finally {
    socket.close();
  }
}

async function debugThread(thread: Session, file: string, line: number, onStop: (stop: Stop) => void) {
  let script: { url: string; map: SourceMap } | undefined;
  thread.on("Debugger.scriptParsed", ({ scriptId, url, sourceMapURL }: Script) => {
    const payload = /^data:application\/json[^,]*;base64,(.*)/.exec(sourceMapURL)?.[1];
    if (payload === undefined) return;
    const map = new SourceMap(JSON.parse(Buffer.from(payload, "base64").toString()));
    const location = generatedLocation(map, url, file, line);
    if (location === undefined) return;
    script = { url, map };
    thread.send("Debugger.setBreakpoint", { location: { scriptId, ...location } });
  });
  thread.on("Debugger.paused", async ({ callFrames, hitBreakpoints }: Paused) => {
    const { location, functionName } = callFrames[0]!;
    if (script === undefined || hitBreakpoints.length === 0) return void thread.send("Debugger.resume");
    // Takes the breakpoint away and lets the thread go on.
    await thread.send("Debugger.disable");
    const { originalSource, originalLine } = script.map.findEntry(location.lineNumber, location.columnNumber) as Entry;
    onStop({ file: new URL(originalSource, script.url).pathname, line: originalLine + 1, functionName });
  });
  await thread.send("Debugger.enable");
  await thread.send("Runtime.runIfWaitingForDebugger");
}

/** Where `line` (from 1) of `file` begins in the script at `url`; undefined where it is not of that file. */
function generatedLocation(map: SourceMap, url: string, file: string, line: number) {
  const { sources, mappings } = map.payload;
  const source = sources.find((one) => new URL(one, url).pathname === file);
  if (source === undefined) return undefined;
  for (let lineNumber = 0; lineNumber < mappings.split(";").length; lineNumber++) {
    for (let columnNumber = 0; columnNumber < 120; columnNumber++) {
      const entry = map.findEntry(lineNumber, columnNumber) as Partial<Entry>;
      if (entry.originalSource === source && entry.originalLine === line - 1) return { lineNumber, columnNumber };
    }
  }
  return undefined;
}
