import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { WebSocket, WebSocketServer } from "ws";
import { until } from "../../../test/processes.ts";
import type { RunEvent } from "../events.ts";
import { applyEvent, emptyRun, foldRun } from "../fold.ts";
import { EventLog } from "../log.ts";
import { follow, type RunUpdate } from "./follow.ts";
import { type LiveAddress, startLive } from "./server.ts";

let directory = "";
let log: EventLog;
let stop: () => void;
const started: RunEvent = { type: "started", version: 1, runId: "r", recipe: "x", command: "run", totalSteps: 9 };
const step = (number: number): RunEvent => ({
  type: "step",
  step: number,
  policyVersion: number,
  metrics: { reward: number / 8 },
});
const address = () => JSON.parse(readFileSync(join(directory, "server.json"), "utf8")) as LiveAddress;
const events = () => join(directory, "events.ndjson");

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "live-"));
  writeFileSync(join(directory, "owner.pid"), String(process.ppid));
  log = new EventLog(events());
  log.emit(started);
  log.emit(step(1));
  stop = await startLive(directory, "r", log);
});
afterEach(() => {
  stop();
  rmSync(directory, { recursive: true });
});

/** What a follower was told, as it comes. */
function collect(signal = new AbortController().signal, trusted = true) {
  const updates: RunUpdate[] = [];
  const done = (async () => {
    for await (const update of follow(directory, signal, trusted)) updates.push(update);
  })();
  return { updates, done };
}

/** How the server answers a connection: its status, or the first message. */
function answer(headers: Record<string, string>, path = "/"): Promise<string> {
  return new Promise((resolve) => {
    const socket = new WebSocket(`${address().url}${path}`, { headers });
    socket.on("message", (bytes) => resolve(String(bytes)));
    socket.on("unexpected-response", (_, { statusCode }) => resolve(`status ${statusCode}`));
    socket.on("error", () => {}).on("close", () => resolve("closed"));
  });
}

test("a reader gets hello, the run so far, then each event; the file is its owner's and goes at the end", async () => {
  expect(statSync(join(directory, "server.json")).mode & 0o777).toBe(0o600);
  const bearer = { authorization: `Bearer ${address().token}` };
  expect(JSON.parse(await answer(bearer))).toEqual({ type: "hello", protocol: 1, runId: "r" });
  const { updates, done } = collect();
  await until("the snapshot", () => updates.length === 1);
  log.emit(step(2));
  log.emit({ type: "ended", state: "completed" });
  stop();
  await done;
  const snapshot = updates[0] as Extract<RunUpdate, { type: "snapshot" }>;
  expect([snapshot.run.runId, snapshot.run.step, snapshot.run.steps[0]?.metrics]).toEqual(["r", 1, { reward: 0.125 }]);
  expect(updates.slice(1).map((update) => update.type === "event" && update.event)).toMatchObject([
    step(2),
    { type: "ended", state: "completed" },
  ]);
  expect(() => address()).toThrow("ENOENT");
});

test("where the server cannot be reached the log tells the same, until the run's process is gone", async () => {
  stop();
  const { updates, done } = collect();
  await until("the snapshot", () => updates.length === 1);
  log.emit(step(2));
  await until("the event", () => updates.length === 2);
  rmSync(join(directory, "owner.pid"));
  await done;
  expect(updates).toMatchObject([
    { type: "snapshot", run: { step: 1, totalSteps: 9 }, source: "log" },
    { type: "event", event: step(2) },
  ]);
});

test("a directory that is not trusted has its log read, and its server left alone", async () => {
  const abort = new AbortController();
  const { updates, done } = collect(abort.signal, false);
  await until("the snapshot", () => updates.length === 1);
  abort.abort();
  await done;
  expect(updates).toMatchObject([{ type: "snapshot", source: "log" }]);
});

test("whenever a reader comes, its snapshot and its events fold to what the log folds to", async () => {
  const said: RunEvent[] = Array.from({ length: 60 }, (_, at) => {
    if (at % 20 === 19) return { type: "resumed", fromStep: at - 5, totalSteps: 9 };
    return at % 3 === 0 ? { type: "eval", step: at, policyVersion: at, metrics: { accuracy: at / 60 } } : step(at);
  });
  const readers: ReturnType<typeof collect>[] = [];
  for (const [at, event] of said.entries()) {
    if (at % 7 === 0) readers.push(collect());
    log.emit(event);
    // Some connect before the next event, some amid several.
    if (at % 2 === 0) await new Promise((resolve) => setTimeout(resolve, 3));
  }
  log.emit({ type: "ended", state: "completed" });
  await until("every reader", () => readers.every(({ updates }) => updates.length > 0));
  stop();
  rmSync(join(directory, "owner.pid"));
  const whole = JSON.parse(JSON.stringify(foldRun(log.read())));
  for (const { updates, done } of readers) {
    await done;
    let run = emptyRun();
    for (const update of updates) {
      if (update.type === "snapshot") run = update.run;
      else applyEvent(run, update.event);
    }
    expect(JSON.parse(JSON.stringify(run))).toEqual(whole);
  }
});

test("a server of another version leaves its reader to the log", async () => {
  stop();
  const other = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  await new Promise((resolve) => other.once("listening", resolve));
  other.on("connection", (socket) => {
    for (const said of [
      { type: "hello", protocol: 2, runId: "r" },
      { type: "snapshot", run: { step: 5 } },
    ]) {
      socket.send(JSON.stringify(said));
    }
  });
  const { port } = other.address() as AddressInfo;
  writeFileSync(join(directory, "server.json"), JSON.stringify({ url: `ws://127.0.0.1:${port}`, token: "t" }));
  rmSync(join(directory, "owner.pid"));
  const { updates, done } = collect();
  await done;
  other.close();
  expect(updates).toMatchObject([{ type: "snapshot", run: { step: 1 } }]);
});

test("a server that dies under a reader leaves it to the log", async () => {
  const { updates, done } = collect();
  await until("the snapshot", () => updates.length === 1);
  stop();
  log.emit(step(2));
  log.flush();
  await until("the log's snapshot", () => updates.length === 2);
  expect(updates[1]).toMatchObject({ type: "snapshot", run: { step: 2 } });
  rmSync(join(directory, "owner.pid"));
  await done;
});

test("who does not know the token, or comes from a web page, is turned away", async () => {
  const { token, url } = address();
  const bearer = `Bearer ${token}`;
  expect(new URL(url).hostname).toBe("127.0.0.1");
  const refused = [
    {},
    { authorization: "Bearer " },
    { authorization: token },
    { authorization: `Bearer ${token.slice(0, -1)}` },
    { authorization: `${bearer}x` },
  ];
  for (const headers of refused) expect(await answer(headers as Record<string, string>)).toBe("status 401");
  expect(await answer({}, `/?token=${token}`)).toBe("status 401");
  for (const origin of ["https://evil.example", "null", url.replace("ws:", "http:")]) {
    expect(await answer({ authorization: bearer, origin })).toBe("status 401");
  }
});

test("the channel holds events alone: a gateway's session, a file of the run, cannot be read through it", async () => {
  const { url, token } = address();
  const get = (path: string) =>
    new Promise<number>((resolve, reject) => {
      const headers = { authorization: `Bearer ${token}` };
      const call = request(`${url.replace("ws:", "http:")}${path}`, { headers }, (reply) => {
        reply.resume();
        resolve(reply.statusCode!);
      });
      call.on("error", reject).end();
    });
  for (const path of ["/s/0/v1/models", "/s/../server.json", "/rollouts/shard-000001.msgpack"]) {
    expect(await get(path)).toBe(426);
  }
});

test("a reader that does not read is dropped, the others and the run go on", async () => {
  const headers = { authorization: `Bearer ${address().token}` };
  const slow = new WebSocket(address().url, { headers });
  await new Promise((resolve) => slow.once("message", resolve));
  slow.pause();
  const { updates, done } = collect();
  await until("the snapshot", () => updates.length === 1);
  const closed = new Promise((resolve) => slow.once("close", resolve));
  const message = "x".repeat(1 << 20);
  for (let count = 1; count <= 40; count++) {
    log.emit({ type: "warning", message });
    await until("the other reader", () => updates.length === 1 + count);
  }
  log.emit({ type: "ended", state: "completed" });
  slow.resume();
  expect(await closed).toBe(1006);
  stop();
  await done;
  expect(updates).toHaveLength(42);
});

test("a snapshot of a resumed run holds what came before the resume", async () => {
  stop();
  const again = new EventLog(events());
  stop = await startLive(directory, "r", again);
  again.emit({ type: "resumed", fromStep: 1, totalSteps: 9 });
  const abort = new AbortController();
  const { updates, done } = collect(abort.signal);
  await until("the snapshot", () => updates.length === 1);
  abort.abort();
  await done;
  expect(updates).toEqual([{ type: "snapshot", run: foldRun(again.read()), source: "live" }]);
});
