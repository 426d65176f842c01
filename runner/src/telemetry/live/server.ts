import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { rmSync } from "node:fs";
import type { IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { type WebSocket, WebSocketServer } from "ws";
import { replaceFile } from "../../files.ts";
import { sameSecret } from "../../secret.ts";
import type { TimedEvent } from "../events.ts";
import type { RunState } from "../fold.ts";
import type { EventLog } from "../log.ts";

/** Version of what the live server says: docs/live.md. */
export const liveProtocol = 1;

/** `hello`, one `snapshot` of the run so far, then each event as it comes. JSON: NaN is null. */
export type LiveMessage =
  | { type: "hello"; protocol: number; runId: string }
  | { type: "snapshot"; run: RunState }
  | { type: "event"; event: TimedEvent };

/** `server.json`, which the run's owner alone can read. */
export type LiveAddress = Record<"url" | "token", string>;

/** Bytes, beside the snapshot, that wait for a reader before it is dropped. It may come again. */
const mostWaiting = 4 << 20;

/** Serves a run's events on loopback while it lasts. Resolves with what ends that. */
export async function startLive(directory: string, runId: string, log: EventLog): Promise<() => void> {
  const { run } = log;
  const token = randomBytes(24).toString("base64url");
  const server = new WebSocketServer({
    host: "127.0.0.1",
    port: 0,
    perMessageDeflate: false,
    maxPayload: 1024,
    // Only a web page says where it comes from, and none has any business here.
    verifyClient: ({ req: { headers } }: { req: IncomingMessage }) =>
      headers.origin === undefined && sameSecret(headers.authorization ?? "", `Bearer ${token}`),
  });
  await once(server, "listening");
  const text = (message: LiveMessage) => JSON.stringify(message);
  const readers = new Map<WebSocket, number>();
  server.on("connection", (reader) => {
    const snapshot = text({ type: "snapshot", run });
    readers.set(reader, snapshot.length + mostWaiting);
    reader.on("error", () => {}).on("close", () => readers.delete(reader));
    reader.send(text({ type: "hello", protocol: liveProtocol, runId }));
    reader.send(snapshot);
  });
  log.onEvent((event) => {
    const message = readers.size > 0 ? text({ type: "event", event }) : "";
    for (const [reader, most] of readers) {
      if (reader.bufferedAmount > most) reader.terminate();
      else reader.send(message);
    }
  });
  const file = join(directory, "server.json");
  const remove = () => rmSync(file, { force: true });
  const url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
  replaceFile(file, `${JSON.stringify({ url, token } satisfies LiveAddress)}\n`, 0o600);
  process.once("exit", remove);
  return () => {
    remove();
    process.off("exit", remove);
    for (const reader of readers.keys()) reader.close();
    server.close();
  };
}
