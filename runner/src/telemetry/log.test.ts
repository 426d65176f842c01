import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import type { TimedEvent } from "./events.ts";
import { EventLog, readEvents } from "./log.ts";
import { summarize } from "./summary.ts";

let path: string;
beforeEach(() => {
  const directory = mkdtempSync(join(tmpdir(), "log-"));
  path = join(directory, "events.ndjson");
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
});

const warning = (message: string) => ({ type: "warning", message }) as const;
const messages = (events: Iterable<TimedEvent>) =>
  [...events].flatMap((event) => (event.type === "warning" ? [event.message] : []));

describe("the log", () => {
  it("survives a torn last line: the reader leaves it out, the next writer cuts it off", () => {
    const log = new EventLog(path);
    for (const message of ["a", "b"]) log.emit(warning(message));
    log.flush();
    const whole = readFileSync(path, "utf8");
    appendFileSync(path, '{"type":"step","st');
    expect(messages(readEvents(path))).toEqual(["a", "b"]);
    new EventLog(path);
    expect(readFileSync(path, "utf8")).toBe(whole);
    writeFileSync(path, "");
    expect([...new EventLog(path).read()]).toEqual([]);
  });

  it("is read in pieces, whatever a piece cuts through", () => {
    const texts = [1, 2, 3].map((count) => "é😀".repeat(150_001 * count));
    const log = new EventLog(path);
    for (const text of texts) log.emit(warning(text));
    expect(messages(log.read())).toEqual(texts);
  });

  it("writes many events at once: on its timer, and at the end", () => {
    vi.useFakeTimers();
    onTestFinished(() => void vi.useRealTimers());
    const log = new EventLog(path);
    log.emit(warning("a"));
    log.emit(warning("b"));
    expect(existsSync(path)).toBe(false);
    vi.advanceTimersByTime(100);
    expect(messages(readEvents(path))).toEqual(["a", "b"]);
    log.emit(warning("c"));
    log.emit({ type: "ended", state: "completed" });
    expect([...readEvents(path)].map(({ type }) => type)).toEqual(["warning", "warning", "warning", "ended"]);
    expect(vi.getTimerCount()).toBe(0);
  });

  it("does not stop at a full disk, which it warns of once", () => {
    symlinkSync("/dev/full", path);
    const log = new EventLog(path);
    const seen: TimedEvent[] = [];
    log.onEvent((event) => seen.push(event));
    for (const message of ["a", "b"]) {
      log.emit(warning(message));
      log.flush();
    }
    expect(messages(seen)).toEqual(["a", expect.stringMatching(/^events wait in memory.*ENOSPC/), "b"]);
  });

  it("writes what waited, in order, when it can", () => {
    const log = new EventLog(path);
    mkdirSync(path); // nothing can be appended to it
    for (const message of ["a", "b"]) {
      log.emit(warning(message));
      log.flush();
    }
    rmdirSync(path);
    log.emit(warning("c"));
    expect(messages(log.read())).toEqual(["a", expect.stringContaining("events wait in memory"), "b", "c"]);
  });

  it("counts what is lost when a disk takes nothing for long", () => {
    const log = new EventLog(path);
    mkdirSync(path);
    const long = "x".repeat(17 * 2 ** 20);
    for (const message of [long, long, "lost", "lost too"]) {
      log.emit(warning(message));
      log.flush();
    }
    rmdirSync(path);
    log.flush();
    const [first, , second, ...more] = messages(log.read());
    expect([first, second]).toEqual([long, long]);
    expect(more).toEqual(["2 events are missing: they could not be written"]);
  });

  it("goes on without a listener that throws, which it names once", () => {
    const log = new EventLog(path);
    const seen: TimedEvent[] = [];
    log.onEvent(() => {
      throw new Error("the sink is gone");
    });
    log.onEvent((event) => seen.push(event));
    log.emit(warning("a"));
    log.emit(warning("b"));
    const told = "somebody who follows the events fails at them: the sink is gone";
    expect(messages(seen).sort()).toEqual(["a", "b", told]);
    expect(messages(log.read()).sort()).toEqual(["a", "b", told]);
  });

  it("folds as it goes on: the newest groups of a long run, and the counts of all", () => {
    const log = new EventLog("/dev/null");
    expect(log.run.groups).toEqual([]);
    const ids = { groupId: "g", promptId: "p", epoch: 0, attempt: 0 };
    for (let at = 1; at <= 45_000; at++) log.emit({ type: "group", ...ids, outcome: "trained", step: at >> 9 });
    expect(log.run.groups.length).toBeLessThanOrEqual(20_000);
    expect(log.run.groups.at(-1)!.step).toBe(45_000 >> 9);
    expect(summarize(log.run).groups.trained).toBe(45_000);
    log.flush();
  });

  it("brings NaN back, which JSON does not have", () => {
    const log = new EventLog(path);
    log.emit({ type: "eval", step: 1, policyVersion: 1, metrics: { accuracy: Number.NaN, failed: 2 } });
    expect([...log.read()]).toMatchObject([{ metrics: { accuracy: Number.NaN, failed: 2 } }]);
  });

  it.each([
    ["half an object", '{"time":1,"type":', "3: not an event: Unexpected end of JSON input"],
    ["an unknown type", '{"time":1,"type":"stepp"}', "3: not an event: type: Invalid discriminator value"],
    ["a lacking field", '{"time":1,"type":"warning"}', "3: not an event: message: Invalid input"],
    ["no time", '{"type":"warning","message":"m"}', "3: not an event: time: Invalid input"],
    ["a wrong value", '{"time":1,"type":"ended","state":"over"}', "3: not an event: state: Invalid option"],
    ["a newer version", '{"time":1,"type":"started","version":2}', "3: not an event: it is of version 2, not 1"],
  ])("refuses %s, with file and line", (_, line, message) => {
    const good = '{"time":1,"type":"warning","message":"m"}';
    writeFileSync(path, `${good}\n\n${line}\n${good}\n`);
    expect(() => [...readEvents(path)]).toThrow(`${path}:${message}`);
  });
});
