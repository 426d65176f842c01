import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { RunEvent } from "../../runner/src/telemetry/events.ts";
import { applyEvent, emptyRun, type RunState } from "../../runner/src/telemetry/fold.ts";
import type { FromPage, ToPage } from "./messages.ts";
import type { Services } from "./services.ts";

/** As much of the editor as a dashboard touches. */
const editor = vi.hoisted(() => {
  class Emitter {
    listeners = new Set<(value: unknown) => void>();
    event = (listener: (value: unknown) => void) => {
      this.listeners.add(listener);
      return { dispose: () => this.listeners.delete(listener) };
    };
    fire = (value?: unknown) => {
      for (const listener of this.listeners) listener(value);
    };
  }
  const panel = {
    ...{ posted: [] as unknown[], messages: new Emitter(), disposed: new Emitter(), visible: true, title: "" },
    onDidDispose: (listener: () => void) => panel.disposed.event(listener),
    reveal: () => {},
    webview: {
      ...{ html: "", options: {} as Record<string, unknown> },
      asWebviewUri: (uri: string) => uri,
      onDidReceiveMessage: (listener: (value: unknown) => void) => panel.messages.event(listener),
      postMessage: (message: unknown) => panel.posted.push(message),
    },
  };
  return { Emitter, panel, made: 0, executed: [] as unknown[][] };
});
vi.mock("vscode", () => ({
  Uri: { joinPath: (...parts: string[]) => parts.join("/") },
  ViewColumn: { Active: -1 },
  commands: { executeCommand: (...given: unknown[]) => editor.executed.push(given) },
  window: {
    createWebviewPanel: () => {
      editor.made++;
      return editor.panel;
    },
  },
}));
const { openDashboard, compareRuns, statusOf } = await import("./dashboard.ts");

class FakeRun {
  state: RunState = emptyRun();
  source = "live" as "live" | "log";
  updated = new editor.Emitter();
  holders = 0;
  say(event: RunEvent): void {
    const timed = { time: 1, ...event };
    applyEvent(this.state, timed);
    this.updated.fire(timed);
  }
}

const step = (number: number): RunEvent => {
  return { type: "step", step: number, policyVersion: number, metrics: { reward: number / 8 } };
};
let runs: Record<string, FakeRun>;
let changed: InstanceType<typeof editor.Emitter>;
let services: Services;

beforeEach(() => {
  vi.useFakeTimers();
  runs = { "/w/runs/new": new FakeRun(), "/w/runs/old": new FakeRun() };
  changed = new editor.Emitter();
  const entries = Object.keys(runs).map((directory) => ({ directory, id: directory.slice(8), live: true }));
  const open = (directory: string, listener: (event: unknown) => void) => {
    const run = runs[directory]!;
    run.holders++;
    const listening = run.updated.event(listener);
    const dispose = () => listening.dispose() && run.holders--;
    return { dispose, source: run.source, state: run.state };
  };
  services = { context: { extensionUri: "ext" }, runs: { entries, onDidChange: changed.event, open } } as never;
  Object.assign(editor.panel, { visible: true });
});
afterEach(() => {
  editor.panel.disposed.fire();
  vi.useRealTimers();
  editor.panel.posted = [];
  editor.executed.length = 0;
});

const tell = (message: FromPage) => editor.panel.messages.fire(message);
/** What was posted since the last call, of one type. */
function posted<Type extends ToPage["type"]>(type: Type): Extract<ToPage, { type: Type }>[] {
  vi.advanceTimersByTime(150);
  const messages = editor.panel.posted as ToPage[];
  editor.panel.posted = [];
  return messages.filter((message) => message.type === type) as never;
}

it("tells a page that is ready everything, then only what is new, at most ten times a second", () => {
  openDashboard(services)();
  runs["/w/runs/new"]!.say(step(1));
  expect(posted("rows")).toEqual([]);
  tell({ type: "ready" });
  const [rows] = posted("rows");
  expect([rows!.directory, rows!.from, rows!.tables[0]!.columns[0]!.values]).toEqual([
    "/w/runs/new",
    0,
    Float64Array.of(0.125),
  ]);
  for (let number = 2; number <= 50; number++) runs["/w/runs/new"]!.say(step(number));
  const news = posted("rows");
  expect(news).toHaveLength(1);
  expect([news[0]!.from, news[0]!.tables[0]!.steps[0], news[0]!.tables[0]!.steps.length]).toEqual([2, 2, 49]);
});

it("a resume replaces what it superseded, a snapshot everything", () => {
  openDashboard(services)();
  tell({ type: "ready" });
  const run = runs["/w/runs/new"]!;
  for (const number of [1, 2, 3]) run.say(step(number));
  posted("rows");
  run.say({ type: "resumed", fromStep: 1, totalSteps: 9 });
  expect(posted("rows")).toMatchObject([{ from: 2, tables: [] }]);
  run.updated.fire(null);
  expect(posted("rows")[0]!.tables[0]!.steps).toEqual(Float64Array.of(1));
});

it("a hidden page is told nothing, and everything when it is back", () => {
  openDashboard(services)();
  tell({ type: "ready" });
  posted("rows");
  editor.panel.visible = false;
  runs["/w/runs/new"]!.say(step(1));
  changed.fire();
  expect(posted("runs")).toEqual([]);
  editor.panel.visible = true;
  tell({ type: "ready" });
  expect(posted("rows")).toMatchObject([{ from: 0, tables: [{ steps: Float64Array.of(1) }] }]);
});

it("shows the runs that were chosen and that exist, lets go of the others, and of all when it is closed", () => {
  openDashboard(services)();
  tell({ type: "ready" });
  tell({ type: "show", directories: ["/w/runs/old", "/etc"] });
  expect(posted("runs").at(-1)!.shown).toEqual(["/w/runs/old"]);
  expect(Object.values(runs).map(({ holders }) => holders)).toEqual([0, 1]);
  runs["/w/runs/new"]!.say(step(1));
  expect(posted("rows")).toEqual([]);
  editor.panel.disposed.fire();
  expect(Object.values(runs).map(({ holders }) => holders)).toEqual([0, 0]);
  expect(changed.listeners.size).toBe(0);
});

it("one dashboard holds all runs; comparing shows those alone, and says why recipes cannot be read", async () => {
  const before = editor.made;
  openDashboard(services)("/w/runs/old");
  tell({ type: "ready" });
  openDashboard(services)({ entry: services.runs.entries[0]! });
  expect(posted("runs").at(-1)!.shown).toEqual(["/w/runs/old", "/w/runs/new"]);
  await compareRuns(services)(undefined, ["/w/runs/new", "/w/runs/old"]);
  expect(posted("differences").at(-1)!.problem).toContain("recipe.yaml");
  expect(editor.made).toBe(before + 1);
});

it("opened before there is a run, it shows the first that comes", () => {
  const entries = services.runs.entries.splice(0);
  openDashboard(services)();
  tell({ type: "ready" });
  expect(posted("runs")).toMatchObject([{ runs: [], shown: [] }]);
  services.runs.entries.push(entries[1]!);
  changed.fire();
  expect(posted("runs").at(-1)).toMatchObject({ shown: ["/w/runs/old"] });
  tell({ type: "show", directories: [] });
  changed.fire();
  expect(posted("runs").at(-1)!.shown).toEqual([]);
});

it("opens the rollouts of a shown run, and of no other directory", () => {
  openDashboard(services)();
  tell({ type: "inspect", directory: "/etc", step: 1 });
  tell({ type: "inspect", directory: "/w/runs/new", step: 3, rolloutId: "p@0/1" });
  const place = { directory: "/w/runs/new", step: 3, rolloutId: "p@0/1" };
  expect(editor.executed).toEqual([["molt.inspectRollouts", place]]);
});

it("its page reaches no network: nothing but our own script and style", () => {
  openDashboard(services)();
  const { html, options } = editor.panel.webview;
  const [, policy] = html.match(/Content-Security-Policy" content="([^"]*)"/)!;
  const nonce = html.match(/script nonce="([\w-]{24})"/)![1];
  expect(policy).toBe(`default-src 'none'; img-src data:; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'`);
  expect(options).toEqual({ enableScripts: true, localResourceRoots: ["ext/dist"] });
});

it("says through what a run is followed, and how it ended; what it says cannot forge a line", () => {
  const run = emptyRun();
  const standing = (live: boolean, source: "live" | "log") => statusOf("/r", run, live, source).standing;
  expect(standing(true, "live")).toBe("live");
  expect(standing(true, "log")).toBe("following its log: its live channel does not answer");
  expect(standing(false, "log")).toBe("died: no process is at work on it");
  run.state = "interrupted";
  expect(standing(false, "log")).toBe("interrupted");
  applyEvent(run, { time: 1, type: "failed", message: "no \u001b[2Jspace" });
  applyEvent(run, { time: 2, type: "ended", state: "failed" });
  expect(standing(false, "log")).toBe("failed: no \\u{1b}[2Jspace");
});
