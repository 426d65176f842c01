import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Services } from "./services.ts";

interface Item {
  id: string;
  label: string;
}
const items = vi.hoisted(() => new Map<string, Item>());
vi.mock("vscode", () => ({
  Uri: { file: (fsPath: string) => ({ fsPath }) },
  Range: class {},
  TestRunProfileKind: { Run: 1, Debug: 2 },
  tests: {
    createTestController: () => ({
      items: {
        get: (id: string) => items.get(id),
        add: (item: Item) => items.set(item.id, item),
        delete: (id: string) => items.delete(id),
        [Symbol.iterator]: () => items[Symbol.iterator](),
      },
      createTestItem: (id: string, label: string) => ({ id, label }),
      createRunProfile: () => {},
    }),
  },
}));
const { registerTests } = await import("./tests.ts");

/** A test of a busy machine waits longer than Vitest does. */
const soon = { timeout: 30_000 };

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "molt-tests-"));
  writeFileSync(join(root, "agent.ts"), "export const grade = () => 1;\n");
});
afterEach(() => rmSync(root, { recursive: true }));

function runOf(id: string): { id: string; directory: string } {
  const directory = join(root, "runs", id);
  mkdirSync(directory, { recursive: true });
  writeFileSync(join(directory, "recipe.yaml"), `train:\n  agent_path: ${join(root, "agent.ts")}\n`);
  return { id, directory };
}

it("lists a reward function on each run of its agent, and none on a run that was deleted", async () => {
  let changed = () => {};
  const runs = { entries: [runOf("a"), runOf("b")], onDidChange: (listener: () => void) => (changed = listener) };
  registerTests({ runs, context: { subscriptions: [] } } as unknown as Services);
  const listed = () => [...items.values()].map(({ id, label }) => `${basename(id)}: ${label}`);
  changed();
  await vi.waitFor(() => expect(listed()).toEqual(["a: agent.ts on a", "b: agent.ts on b"]), soon);
  runs.entries.shift();
  changed();
  expect(listed()).toEqual(["b: agent.ts on b"]);
  runs.entries.push(runOf("c"));
  changed();
  await vi.waitFor(() => expect(listed()).toEqual(["b: agent.ts on b", "c: agent.ts on c"]), soon);
});
