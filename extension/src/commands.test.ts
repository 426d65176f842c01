import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, it, onTestFinished, vi } from "vitest";
import type { Services } from "./services.ts";

type Handler = (...given: unknown[]) => Promise<unknown>;
const editor = vi.hoisted(() => ({
  commands: new Map<string, Handler>(),
  said: [] as string[],
  opened: [] as string[],
}));
vi.mock("vscode", () => ({
  commands: { registerCommand: (name: string, handler: Handler) => editor.commands.set(name, handler) },
  Range: class {},
  Uri: { file: (fsPath: string) => ({ fsPath }) },
  ViewColumn: { Beside: -2 },
  window: {
    showErrorMessage: (text: string) => editor.said.push(text),
    showWarningMessage: (text: string) => editor.said.push(text),
    showTextDocument: async () => {},
  },
  workspace: {
    openTextDocument: async ({ fsPath }: { fsPath: string }) => {
      editor.opened.push(fsPath);
      return { lineCount: 1, lineAt: () => ({ range: {} }) };
    },
  },
}));
const { registerCommands } = await import("./commands.ts");
const { warnOfSkew } = await import("./doctor.ts");

const log = { error: () => {} };
registerCommands({ context: { subscriptions: [] }, log } as unknown as Services);
beforeEach(() => Object.assign(editor, { said: [], opened: [] }));

/** What VS Code makes a link of in a notification, and a click on that runs the command. */
const link = /\[([^\]]+)\]\(((?:https?:\/\/|command:|file:)[^)\s]+)(?: (["'])(.+?)(\3))?\)/i;
const evil = "[a](command:workbench.action.quit)";

it("what a run or a package says is no link in a notification", async () => {
  expect(evil).toMatch(link);
  await editor.commands.get("molt.openSource")!(`${evil}.ts:3`);
  warnOfSkew({ server: { note: () => {} } } as unknown as Services, [`molt-runner ${evil}\u202e: it is older`]);
  expect(editor.said).toHaveLength(2);
  for (const said of editor.said) {
    expect(said).toContain("workbench.action.quit");
    expect(said).not.toMatch(link);
    expect(said).not.toContain("\u202e");
  }
});

it("a turn's place is opened below the run's folders, and never in the network", async () => {
  const folder = mkdtempSync(join(tmpdir(), "molt ünder "));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "an agent.ts"), "");
  const open = editor.commands.get("molt.openSource")!;
  await open("an agent.ts:1", join(folder, "runs", "a-1"));
  await open(join(folder, "an agent.ts"));
  expect([editor.opened, editor.said]).toEqual([new Array(2).fill(join(folder, "an agent.ts")), []]);
  await open(`/${join(folder, "an agent.ts")}:1`);
  expect(editor.opened).toHaveLength(2);
  expect(editor.said).toEqual([expect.stringContaining("is not there any more")]);
});
