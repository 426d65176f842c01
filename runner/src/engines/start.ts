/** How an engine comes to be: a child of ours, or one that somebody else runs. */
import { setTimeout as sleep } from "node:timers/promises";
import { deadlineMs, withDeadline } from "../deadline.ts";
import { deferred, failure } from "../deferred.ts";
import { messageOf } from "../errors.ts";
import { type ChildOptions, orDeath } from "../launchers/child.ts";
import { loopback, type Seat } from "../launchers/node.ts";
import { indented } from "../lists.ts";
import { type EngineClient, EngineError } from "./client.ts";

export interface RunningEngine {
  url: string;
  /** Rejects, never resolves, when it is gone before `stop`. */
  died: Promise<never>;
  stop(graceSeconds: number): Promise<void>;
}

export interface StartContext {
  client: EngineClient;
  seat: Seat;
  signal: AbortSignal;
}

/** Resolves once it answers; on failure, or when `signal` aborts, nothing of it is left. */
export type StartEngine = (engine: number, context: StartContext) => Promise<RunningEngine>;

/** For calls that an engine answers at once. */
export const callSeconds = 10;
/** Of an engine that has had its deadline. */
export const dropSeconds = 1;
const askEveryMs = 300;
const shownLines = 20;
/** An attached engine is asked for its health so often, and gone after so many silences in a row. */
const watchEveryMs = 1000;
const missedLooks = 3;

/** `molt-runner serve` over a free port. */
export function embeddedEngine(model: string, args: string[], seconds: number): StartEngine {
  return async (engine, context) => {
    const { client, seat } = context;
    const words = ["serve", "--model", model, "--host", seat.node.address, "--port", "0", ...args];
    const answering = (url: string) => client.health(url, { timeoutSeconds: callSeconds });
    return startListening(`engine ${engine}`, words, answering, seconds, context);
  };
}

/** The words of a command, to which host and port are added. */
export interface EngineCommand {
  words: string[];
  env: Record<string, string>;
  /** Words that older versions of the program do not know: left out once it has said so. */
  newer: string[];
}

/** Its control routes ask for no key: it listens on its node alone, and is reached from others through a gate. */
export function commandEngine({ words, env, newer }: EngineCommand, seconds: number): StartEngine {
  let known = newer;
  const start: StartEngine = async (engine, context) => {
    const { client, seat, signal } = context;
    const [program, ...args] = [...words, ...known] as [string, ...string[]];
    const port = await seat.node.freePort();
    const place = ["--host", loopback, "--port", String(port)];
    const child = { name: `engine ${engine}`, program, args: [...args, ...place], env };
    const gate = await startGate(engine, port, seconds, context);
    const answering = (over: AbortSignal) => Promise.race([untilHealthy(client, gate.url, over), gate.died]);
    try {
      const running = await startChild(child, answering, seconds, context);
      // One does not outlive the other: the next engine may need what this one holds.
      const stop = async (graceSeconds: number) => {
        await Promise.all([running.stop(graceSeconds), gate.stop(graceSeconds)]);
      };
      const died = Promise.race([running.died, gate.died]).catch(async (error) => {
        await stop(dropSeconds);
        throw error;
      });
      return { url: gate.url, died, stop };
    } catch (error) {
      await gate.stop(dropSeconds);
      const unknown = /unrecognized arguments: (.*)/.exec(messageOf(error))?.[1]?.split(" ") ?? [];
      if (signal.aborted || !known.some((word) => unknown.includes(word))) throw error;
      known = known.filter((word) => !unknown.includes(word));
      return start(engine, context);
    }
  };
  return start;
}

/** One that runs already, and may leave and come back. */
export function attachedEngine(urls: string[], seconds: number): StartEngine {
  return async (engine, { client, signal }) => {
    const url = urls[engine]!;
    const what = () => `engine ${engine} at ${url} to answer`;
    await within(seconds, signal, what, (over) => untilHealthy(client, url, over));
    const [{ promise: died, reject }, stopped] = [failure(), new AbortController()];
    watchHealth(client, url, stopped.signal).catch((error) => stopped.signal.aborted || reject(error));
    return { url, died, stop: async () => stopped.abort() };
  };
}

/** What other machines need to reach that port of the engine's node. */
async function startGate(engine: number, port: number, seconds: number, context: StartContext): Promise<RunningEngine> {
  const { address } = context.seat.node;
  if (address === loopback) {
    return { url: `http://${loopback}:${port}`, died: failure().promise, stop: async () => {} };
  }
  const words = ["gate", "--host", address, "--to", String(port)];
  return startListening(`the gate of engine ${engine}`, words, async () => {}, seconds, context);
}

/** One of our own processes that says where it listens. */
function startListening(
  name: string,
  args: string[],
  answering: (url: string) => Promise<void>,
  seconds: number,
  context: StartContext,
): Promise<RunningEngine> {
  const listening = deferred<string>();
  const onLine = (line: string) => {
    if (line.startsWith('{"listening":')) listening.resolve(JSON.parse(line).listening);
  };
  const heard = async () => {
    const url = await listening.promise;
    await answering(url);
    return url;
  };
  return startChild({ name, args, onLine }, heard, seconds, context);
}

async function startChild(
  options: ChildOptions,
  answering: (over: AbortSignal) => Promise<string>,
  seconds: number,
  { seat, signal }: StartContext,
): Promise<RunningEngine> {
  const lines: string[] = [];
  const onLine = (line: string) => {
    options.onLine?.(line);
    lines.push(line);
    lines.splice(0, lines.length - shownLines);
  };
  const child = seat.node.start({ ...options, env: { ...options.env, ...seat.env }, onLine });
  try {
    const what = () => `${child.name} to answer; its last lines:${indented(lines)}`;
    const url = await within(seconds, signal, what, (over) => orDeath(answering(over), child.died, dropSeconds));
    return { url, died: child.died, stop: (graceSeconds) => child.stop(graceSeconds) };
  } catch (error) {
    await child.stop(dropSeconds);
    throw error;
  }
}

/** What `body` resolves with, unless `seconds` pass or `signal` aborts first; the signal that it gets ends its work. */
async function within<T>(
  seconds: number,
  signal: AbortSignal,
  what: () => string,
  body: (over: AbortSignal) => Promise<T>,
): Promise<T> {
  const [ended, late] = [failure(), new AbortController()];
  const over = AbortSignal.any([signal, late.signal]);
  const onAbort = () => ended.reject(over.reason);
  over.addEventListener("abort", onAbort);
  if (over.aborted) onAbort();
  try {
    return await withDeadline(Promise.race([ended.promise, body(over)]), seconds, what);
  } finally {
    late.abort();
  }
}

async function untilHealthy(client: EngineClient, url: string, signal: AbortSignal): Promise<string> {
  for (;;) {
    const error = await client.health(url, { timeoutSeconds: callSeconds, signal }).then(
      () => null,
      (reason) => reason,
    );
    signal.throwIfAborted();
    if (error === null) return url;
    if (error instanceof EngineError && error.status === 401) throw error; // a key is not answered by waiting
    await sleep(askEveryMs, undefined, { signal });
  }
}

/** Rejects when it is gone. */
async function watchHealth(client: EngineClient, url: string, signal: AbortSignal): Promise<void> {
  for (let missed = 0; ; ) {
    await sleep(deadlineMs(watchEveryMs / 1000), undefined, { signal });
    try {
      await client.health(url, { timeoutSeconds: callSeconds, signal });
      missed = 0;
    } catch (error) {
      if (++missed === missedLooks) throw error;
    }
  }
}
