import { appendFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

const editor = vi.hoisted(() => ({ root: "", looks: [] as Promise<string[]>[] }));
const nothing = vi.hoisted(() => () => ({ dispose() {} }));
vi.mock("vscode", () => ({
  EventEmitter: class {
    event = () => {};
    fire = () => {};
    dispose = () => {};
  },
  Uri: { file: (fsPath: string) => ({ fsPath }) },
  window: {},
  workspace: {
    isTrusted: false,
    createFileSystemWatcher: () => ({ onDidCreate: nothing, onDidChange: nothing, onDidDelete: nothing, dispose() {} }),
    ...{ onDidChangeWorkspaceFolders: nothing, onDidGrantWorkspaceTrust: nothing },
    getWorkspaceFolder: () => ({ uri: { fsPath: editor.root }, name: "root" }),
    // What a test says, else what there is.
    findFiles: async () => (await (editor.looks.shift() ?? logs())).map((fsPath) => ({ fsPath })),
  },
}));
const { Runs } = await import("./runs.ts");
const { runTarget } = await import("./targets.ts");

/** A test of a busy machine waits longer than Vitest does. */
const soon = { timeout: 30_000 };

let runs: InstanceType<typeof Runs>;
beforeEach(() => {
  editor.root = mkdtempSync(join(tmpdir(), "molt ünder "));
  runs = new Runs();
});
afterEach(() => {
  runs.dispose();
  editor.looks.length = 0;
  rmSync(editor.root, { recursive: true });
});

const log = (id: string) => join(editor.root, "runs", id, "events.ndjson");
const directory = (id: string) => dirname(log(id));
function write(id: string, ...events: object[]): void {
  mkdirSync(directory(id), { recursive: true });
  appendFileSync(log(id), events.map((event) => `${JSON.stringify({ time: 1, ...event })}\n`).join(""));
}
const started = { type: "started", version: 1, runId: "a", recipe: "a recipe.yaml", command: "run", totalSteps: 3 };
const step = { type: "step", step: 1, policyVersion: 1, metrics: {} };
const found = () => runs.entries.map(({ id, recipe }) => `${id}: ${recipe && basename(recipe)}`);

const logs = async () => readdirSync(join(editor.root, "runs")).map(log);

it("of two looks for runs the newest has the last word", async () => {
  write("old", started);
  let answer = (_: string[]) => {};
  editor.looks.push(new Promise((done) => (answer = done)));
  const looked = [runs.refresh(), runs.refresh()];
  write("new", started);
  await setImmediate();
  answer([]);
  await Promise.all(looked);
  expect(found().sort()).toEqual(["new: null", "old: null"]);
});

it("goes on looking after a look that failed", async () => {
  write("a", started);
  editor.looks.push(Promise.reject(new Error("a folder that went")));
  await expect(runs.refresh()).rejects.toThrow("a folder that went");
  await runs.refresh();
  expect(found()).toEqual(["a: null"]);
});

it("a run that does not say yet of which recipe it is says so later", async () => {
  write("a", started);
  await runs.refresh();
  expect(found()).toEqual(["a: null"]);
  writeFileSync(join(editor.root, "a recipe.yaml"), "");
  await runs.refresh();
  expect(found()).toEqual(["a: a recipe.yaml"]);
});

it("tells a run's listeners what comes, until each has let go of it, and follows it once", async () => {
  write("a", started, step);
  const told = { one: 0, two: 0 };
  const one = runs.open(directory("a"), () => told.one++);
  const two = runs.open(directory("a"), () => told.two++);
  await vi.waitFor(() => expect(two.state.step).toBe(1), soon);
  expect([told, one.state]).toEqual([{ one: 1, two: 1 }, two.state]);
  one.dispose();
  one.dispose();
  const three = runs.open(directory("a"), () => {});
  await vi.waitFor(() => expect(told.two).toBe(2), soon);
  expect(told.one).toBe(1);
  two.dispose();
  three.dispose();
  const { state } = runs.open(directory("a"), () => {});
  expect(state.step).toBe(0);
});

it("a run that is gone is named, and no other taken for it", async () => {
  write("b", started);
  for (const target of [directory("a"), { entry: { directory: directory("a") } as never }]) {
    await expect(runTarget(runs, target)).rejects.toThrow(`${directory("a")} is no run of this workspace any more`);
  }
  expect((await runTarget(runs, undefined))!.id).toBe("b");
});
