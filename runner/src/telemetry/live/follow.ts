import { on } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { WebSocket } from "ws";
import { deadlineMs } from "../../deadline.ts";
import type { TimedEvent } from "../events.ts";
import { workerOf } from "../find-run.ts";
import { foldRun } from "../fold.ts";
import { readEvents } from "../log.ts";
import { type LiveAddress, type LiveMessage, liveProtocol } from "./server.ts";

/** `source`: whether the run's server or its log says so, from here to the next snapshot. */
export type RunUpdate =
  | (Extract<LiveMessage, { type: "snapshot" }> & { source: "live" | "log" })
  | Extract<LiveMessage, { type: "event" }>;

const pollMs = 250;

/**
 * A run from now on: a snapshot, then its events, until its process is gone or `signal` aborts. From the live server
 * where that answers, else, and once it no longer does, from the log: then with a snapshot anew. Not `trusted`: from
 * the log alone, since the directory says where its server is.
 */
export async function* follow(directory: string, signal: AbortSignal, trusted = true): AsyncGenerator<RunUpdate> {
  let ended = false;
  for await (const update of trusted ? followLive(directory, signal) : []) {
    ended = update.type === "event" && update.event.type === "ended";
    yield update;
  }
  if (ended || signal.aborted) return;
  const position = { offset: 0 };
  yield { type: "snapshot", run: foldRun(readEvents(join(directory, "events.ndjson"), position)), source: "log" };
  for await (const event of followEvents(directory, position, signal)) yield { type: "event", event };
}

async function* followLive(directory: string, signal: AbortSignal): AsyncGenerator<RunUpdate> {
  let socket: WebSocket | undefined;
  try {
    const { url, token } = JSON.parse(readFileSync(join(directory, "server.json"), "utf8")) as LiveAddress;
    socket = new WebSocket(url, { headers: { authorization: `Bearer ${token}` }, handshakeTimeout: deadlineMs(2) });
    for await (const [bytes] of on(socket, "message", { signal, close: ["close"] })) {
      const message = JSON.parse(String(bytes)) as LiveMessage;
      if (message.type === "snapshot") yield { ...message, source: "live" };
      else if (message.type === "event") yield message;
      else if (message.protocol !== liveProtocol) return;
    }
  } catch {
    // No server, a dead one, one that turns us away: the log says the same.
  } finally {
    socket?.on("error", () => {}).terminate();
  }
}

/** The events of a log from `position` on, and those to come until the run's process is gone. */
export async function* followEvents(
  directory: string,
  position = { offset: 0 },
  signal?: AbortSignal,
): AsyncGenerator<TimedEvent> {
  for (let going = true; going; ) {
    // Asked first: what it wrote last is read.
    going = workerOf(directory) !== null;
    yield* readEvents(join(directory, "events.ndjson"), position);
    if (going) await sleep(pollMs, null, { signal }).catch(() => {});
    going &&= !signal?.aborted;
  }
}
