/** The tools as VS Code calls them, forwarded to the built runner. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { isAlive, until } from "../../runner/test/processes.ts";
import { read, root } from "../../runner/test/tree.ts";
import { registerAssistants } from "./assistants.ts";
import type { Services } from "./services.ts";

interface RegisteredTool {
  prepareInvocation(options: { input: object }): { confirmationMessages?: { title: string; message: string } };
  invoke(options: { input: object }, token: object): Promise<{ content: { value: string }[] }>;
}

const editor = vi.hoisted(() => ({
  tools: new Map<string, unknown>(),
  provide: async (): Promise<{ command: string; args: string[]; cwd: { fsPath: string } }[]> => [],
  folders: [] as { name: string; uri: { fsPath: string } }[],
  isTrusted: true,
}));

vi.mock("vscode", () => {
  class Part {
    value: string;
    constructor(value: string) {
      this.value = value;
    }
  }
  class Result {
    content: Part[];
    constructor(content: Part[]) {
      this.content = content;
    }
  }
  class Definition {
    command: string;
    args: string[];
    constructor(_: string, command: string, args: string[]) {
      [this.command, this.args] = [command, args];
    }
  }
  const disposable = { dispose() {} };
  const lm = {
    registerTool: (name: string, tool: unknown) => editor.tools.set(name, tool) && disposable,
    registerMcpServerDefinitionProvider: (_: string, one: { provideMcpServerDefinitions: typeof editor.provide }) => {
      editor.provide = one.provideMcpServerDefinitions;
      return disposable;
    },
  };
  const workspace = {
    get isTrusted() {
      return editor.isTrusted;
    },
    get workspaceFolders() {
      return editor.folders;
    },
    getWorkspaceFolder: () => editor.folders[0],
    getConfiguration: () => ({ get: (_: string, usual: unknown) => usual }),
    onDidGrantWorkspaceTrust: () => disposable,
    onDidChangeWorkspaceFolders: () => disposable,
  };
  class EventEmitter {
    event = () => disposable;
    fire() {}
    dispose() {}
  }
  const window = { activeTextEditor: undefined };
  return {
    ...{ lm, workspace, window, EventEmitter, LanguageModelTextPart: Part, LanguageModelToolResult: Result },
    McpStdioServerDefinition: Definition,
  };
});

let home = "";
let disposables: { dispose(): void }[] = [];
const token = { onCancellationRequested: () => ({ dispose() {} }) };
const tool = (name: string) => editor.tools.get(`molt_${name}`) as RegisteredTool;
const ask = async (name: string, input: object) => (await tool(name).invoke({ input }, token)).content[0]!.value;

/** Of this process's children. */
function servers(): string[] {
  const isServer = (pid: string) => {
    try {
      const parent = /^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
      return parent === `${process.pid}` && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("\0mcp\0");
    } catch {
      return false; // it is gone
    }
  };
  return readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && isAlive(Number(pid)) && isServer(pid));
}

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "molt-assistants-"));
  mkdirSync(join(home, "node_modules"));
  symlinkSync(join(root, "runner"), join(home, "node_modules", "molt-runner"));
  writeFileSync(join(home, "recipe.yaml"), "run: { steps: 3 }\nactor: { model_name_or_path: model }\n");
  editor.folders = [{ name: "home", uri: { fsPath: home } }];
  const packageJSON = JSON.parse(read("extension/package.json"));
  const log = { info: () => {} };
  disposables = registerAssistants({ context: { extension: { packageJSON } }, log } as unknown as Services);
});
afterAll(() => {
  for (const one of disposables) one.dispose();
  rmSync(home, { recursive: true, force: true });
});

it("asks before what acts, and before nothing else", () => {
  const asked = (name: string, input: object) => tool(name).prepareInvocation({ input }).confirmationMessages?.message;
  for (const name of ["check", "plan", "metrics", "rollout"]) expect(asked(name, { recipe: "r.yaml" })).toBeUndefined();
  expect(asked("start", { recipe: "r.yaml" })).toBeUndefined();
  expect(asked("start", { recipe: "r.yaml", confirm: "0a" })).toBe("Start a run of r.yaml {}, as plan 0a shows it?");
  expect(asked("stop", { run: "latest", now: true })).toBe("Stop the run latest at once?");
  expect(asked("run_tests", { file: "x.test.mjs" })).toBe("Execute x.test.mjs?");
  expect(asked("scaffold", { kind: "loss", name: "mine" })).toBe("Write the loss mine into this workspace?");
});

it("answers from the workspace's runner, by one process that ends with the extension; errors are errors", async () => {
  expect(await ask("explain", { recipe: "recipe.yaml", key: "run.steps" })).toMatch(
    /^run\.steps: 3 {2}# recipe\.yaml:1:/,
  );
  expect(servers()).toHaveLength(1);
  await expect(ask("explain", { recipe: "../r.yaml", key: "run.steps" })).rejects.toThrow("leads out of");
  await expect(ask("start", { recipe: "none.yaml" })).rejects.toThrow("there is no such recipe");
  expect(servers()).toHaveLength(1);

  editor.isTrusted = false;
  await expect(ask("runs", {})).rejects.toThrow("nothing runs in a workspace that is not trusted");
  expect(await editor.provide()).toEqual([]);
  editor.isTrusted = true;
  const [definition] = await editor.provide();
  expect(definition).toMatchObject({ command: "node", cwd: { fsPath: home } });
  expect(definition!.args.at(-1)).toBe("mcp");

  for (const one of disposables) one.dispose();
  await until("the server's end", () => servers().length === 0);
});

it("says where there is no runner, and no folder", async () => {
  editor.folders = [{ name: "bare", uri: { fsPath: tmpdir() } }];
  await expect(ask("runs", {})).rejects.toThrow("molt-runner is not installed");
  editor.folders = [];
  await expect(ask("runs", {})).rejects.toThrow("no folder is open");
});
