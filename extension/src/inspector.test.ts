import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { StoredGroup } from "../../runner/src/telemetry/shards.ts";
import type { FromInspector, ToInspector } from "./rollout-view.ts";

type Listener = (value: never) => unknown;
interface Panel {
  posted: ToInspector[];
  say(message: FromInspector): void;
  isDisposed: boolean;
}
type Restore = (panel: object, state: unknown) => Promise<void>;

const editor = vi.hoisted(() => ({
  panels: [] as Panel[],
  restore: (() => {}) as unknown as Restore,
  executed: [] as unknown[],
  stored: [] as (() => void)[],
}));
vi.mock("vscode", () => ({
  Uri: { joinPath: (...parts: string[]) => parts.join("/"), file: (fsPath: string) => ({ fsPath }) },
  ViewColumn: { Active: -1 },
  commands: { executeCommand: async (...given: unknown[]) => editor.executed.push(given) },
  RelativePattern: class {},
  workspace: {
    isTrusted: false,
    createFileSystemWatcher: () => ({
      onDidCreate: (listener: () => void) => editor.stored.push(listener),
      onDidChange() {},
      dispose() {},
    }),
  },
  window: {
    createWebviewPanel: () => panelOf(),
    registerWebviewPanelSerializer: (_: string, { deserializeWebviewPanel }: { deserializeWebviewPanel: Restore }) => {
      editor.restore = deserializeWebviewPanel;
    },
  },
}));

/** Readings of the run's shards, each with what it gives once it is let go on. */
const readings = vi.hoisted(() => [] as { end: (groups: unknown[]) => void }[]);
vi.mock("../../runner/src/telemetry/shards.ts", () => ({
  async *readRollouts() {
    yield* await new Promise<StoredGroup[]>((end) => readings.push({ end: end as never }));
  },
}));
const { inspectRollouts, restoreInspectors } = await import("./inspector.ts");

function panelOf() {
  const [listeners, closers]: [Listener[], Listener[]] = [[], []];
  const listen = (to: Listener[]) => (listener: Listener) => to.push(listener);
  const posted: ToInspector[] = [];
  const panel = {
    ...{ posted, title: "", visible: true, isDisposed: false, reveal() {} },
    onDidDispose: listen(closers),
    onDidChangeViewState: listen([]),
    say: (message: FromInspector) => void listeners.forEach((listener) => void listener(message as never)),
    dispose() {
      panel.isDisposed = true;
      for (const closer of closers) closer(undefined as never);
    },
    webview: {
      ...{ html: "", options: {}, asWebviewUri: String },
      onDidReceiveMessage: listen(listeners),
      postMessage: (message: ToInspector) => posted.push(message),
    },
  };
  editor.panels.push(panel);
  return panel;
}

/** A test of a busy machine waits longer than Vitest does. */
const soon = { timeout: 30_000 };

let directory: string;
const services = { context: { extensionUri: "ext" } } as never;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "molt-inspector-"));
  writeFileSync(join(directory, "events.ndjson"), "");
});
afterEach(() => {
  for (const panel of editor.panels) (panel as unknown as { dispose(): void }).dispose();
  for (const list of [editor.panels, editor.executed, editor.stored, readings]) list.length = 0;
  rmSync(directory, { recursive: true });
});

const query = { sort: "step", descending: true, page: 0 } as const;
const groupOf = (...ids: string[]) => {
  const rollouts = ids.map((rolloutId) => ({ rolloutId, reward: 0, stop: rolloutId.slice(0, 1), segments: [] }));
  return [{ step: 1, group: { groupId: "g", rollouts, failed: [] } }];
};
/** Of each list that was posted. */
const lists = () => {
  const all = editor.panels[0]!.posted.filter((message) => message.type === "list");
  return all.map(({ rows }) => rows.map(({ rollout }) => rollout).join(" "));
};

async function openList(): Promise<Panel> {
  await inspectRollouts(services)({ directory });
  const panel = editor.panels[0]!;
  panel.say({ type: "ready" });
  panel.say({ type: "list", query, anew: false });
  await setImmediate();
  readings[0]!.end(groupOf("a1", "b1"));
  await vi.waitFor(() => expect(lists()).toEqual(["b1 a1"]), soon);
  return panel;
}

it("filters that come while it reads anew are kept, whichever ends first", async () => {
  const panel = await openList();
  panel.say({ type: "list", query, anew: true });
  await setImmediate();
  panel.say({ type: "list", query: { ...query, stop: "a" }, anew: false });
  await vi.waitFor(() => expect(lists().at(-1)).toBe("a1"), soon);
  readings[1]!.end(groupOf("a1", "b1", "a2"));
  await vi.waitFor(() => expect(lists()).toHaveLength(3), soon);
  expect(lists().at(-1)).toBe("a2 a1");
});

it("of two readings the one that was begun last has the last word", async () => {
  const panel = await openList();
  panel.say({ type: "list", query, anew: true });
  panel.say({ type: "list", query, anew: true });
  await vi.waitFor(() => expect(readings.length).toBeGreaterThan(1), soon);
  // A second one that were under way at once would end first.
  await setImmediate();
  readings[2]?.end(groupOf("newest"));
  await setImmediate();
  readings[1]!.end(groupOf("older"));
  await vi.waitFor(() => expect(readings.length).toBe(3), soon);
  readings[2]!.end(groupOf("newest"));
  await vi.waitFor(() => expect(lists()).toHaveLength(3), soon);
  expect(lists().at(-1)).toBe("newest");
});

it("news come by the newest filters, and not while a rollout is shown", async () => {
  const panel = await openList();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const store = async (...ids: string[]) => {
    editor.stored[0]!();
    vi.advanceTimersByTime(1000);
    await setImmediate();
    readings.at(-1)!.end(groupOf(...ids));
    await setImmediate();
    await setImmediate();
  };
  panel.say({ type: "list", query: { ...query, stop: "a" }, anew: false });
  await store("a1", "a2", "b2");
  expect(lists().at(-1)).toBe("a2 a1");
  panel.say({ type: "open", id: "none" });
  await store("a1", "a2", "a3");
  expect(lists().at(-1)).toBe("a2 a1");
  vi.useRealTimers();
});

it("comes back after a reload, one for a run, and not of a run that is gone", async () => {
  restoreInspectors(services);
  const restored = async (state: unknown) => {
    const panel = panelOf();
    await editor.restore(panel, state);
    return panel;
  };
  const panel = await restored({ directory });
  expect([panel.isDisposed, panel.webview.html.includes("inspector-page.js")]).toEqual([false, true]);
  await inspectRollouts(services)({ directory, rolloutId: "a" });
  panel.say({ type: "ready" });
  expect(panel.posted).toMatchObject([{ type: "go", directory, id: "a" }]);
  for (const state of [{ directory }, { directory: join(directory, "none") }, { directory: 3 }, undefined]) {
    expect((await restored(state)).isDisposed).toBe(true);
  }
});

it("takes no message for another", async () => {
  const panel = await openList();
  panel.say({ type: "source", place: "agent.ts:3" });
  panel.say({ type: "quit" } as never);
  await setImmediate();
  expect(editor.executed).toEqual([["molt.openSource", "agent.ts:3", directory]]);
});
