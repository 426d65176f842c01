import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import {
  type CodeAction,
  createProtocolConnection,
  type Diagnostic,
  type ProtocolConnection,
  StreamMessageReader,
  StreamMessageWriter,
} from "vscode-languageserver/node";
import { deadlineMs, withDeadline } from "../../runner/src/deadline.ts";
import { verbRequest } from "../src/requests.ts";

const folder = realpathSync(mkdtempSync(join(tmpdir(), "molt-lsp-")));
const server = join(folder, "server.cjs");
const recipe = join(folder, "sort.yaml");
const uri = pathToFileURL(recipe).href;
const sound = `# molt-runner
actor: { model_name_or_path: model, init: random }
data: { prompt_dataset: prompts.jsonl }
train: { agent_path: agent.ts }
`;
const replies = "actor: { model_name_or_path: model }\ndata: { prompt_dataset: a.jsonl, output_key: reply }\n";

let child: ChildProcess;
let exited: Promise<number | null>;
let connection: ProtocolConnection;
/** What the server publishes, each taken once and in order. */
let published: AsyncGenerator<Diagnostic[]>;

// Built here, so that what is tested is never an older build.
beforeAll(() => {
  const script = fileURLToPath(new URL("../build.mjs", import.meta.url));
  execFileSync(process.execPath, [script, server], { timeout: deadlineMs(30) });
}, deadlineMs(40));
afterAll(() => rmSync(folder, { recursive: true }));

beforeEach(async () => {
  child = spawn(process.execPath, [server, "--stdio"], { stdio: ["pipe", "pipe", "inherit"] });
  exited = new Promise((resolve) => child.once("exit", resolve));
  connection = createProtocolConnection(
    new StreamMessageReader(child.stdout!),
    new StreamMessageWriter(child.stdin!),
    undefined,
  );
  published = publications(connection);
  connection.listen();
});

afterEach(() => {
  connection.dispose();
  child.kill("SIGKILL");
});

async function* publications(from: ProtocolConnection): AsyncGenerator<Diagnostic[]> {
  const arrived: Diagnostic[][] = [];
  let wake = () => {};
  from.onNotification("textDocument/publishDiagnostics", (params: { uri: string; diagnostics: Diagnostic[] }) => {
    if (params.uri !== uri) return;
    arrived.push(params.diagnostics);
    wake();
  });
  for (;;) {
    if (arrived.length > 0) yield arrived.shift()!;
    else await new Promise<void>((resolve) => (wake = resolve));
  }
}

const soon = <T>(promise: Promise<T>, what: string): Promise<T> => withDeadline(promise, 10, what);
const request = <T>(method: string, params?: unknown) => soon(connection.sendRequest<T>(method, params), method);
const notify = (method: string, params: unknown) => connection.sendNotification(method, params);
const nextMessages = async () => {
  const { value } = await soon(published.next(), "publishDiagnostics");
  return (value as Diagnostic[]).map(({ message }) => message);
};

async function initialize(capabilities: object = {}): Promise<void> {
  await request("initialize", { processId: process.pid, rootUri: pathToFileURL(folder).href, capabilities });
  await notify("initialized", {});
}

const open = (text: string) =>
  notify("textDocument/didOpen", { textDocument: { uri, languageId: "yaml", version: 1, text } });

describe("the language server over stdio", () => {
  it("publishes, offers the repair, clears after it, and leaves when asked", async () => {
    await initialize();
    await open(`${sound}rollout: { batch_sise: 4 }\n`);
    expect(await nextMessages()).toEqual([expect.stringContaining("did you mean 'batch_size'")]);

    const range = { start: { line: 4, character: 14 }, end: { line: 4, character: 14 } };
    const context = { diagnostics: [] };
    const actions = await request<CodeAction[]>("textDocument/codeAction", { textDocument: { uri }, range, context });
    const edit = {
      range: { start: { line: 4, character: 11 }, end: { line: 4, character: 21 } },
      newText: "batch_size",
    };
    expect(actions).toMatchObject([{ kind: "quickfix", edit: { changes: { [uri]: [edit] } } }]);

    const contentChanges = [{ text: `${sound}rollout: { batch_size: 4 }\n` }];
    await notify("textDocument/didChange", { textDocument: { uri, version: 2 }, contentChanges });
    expect(await nextMessages()).toEqual([]);

    await request("shutdown");
    await notify("exit", undefined);
    expect(await soon(exited, "exit")).toBe(0);
  });

  it("names the verb of a recipe on disk, and of its text as it is being edited", async () => {
    writeFileSync(recipe, replies);
    await initialize();
    expect(await request(verbRequest, { uri })).toBe("sft");
    await open(sound);
    expect(await request(verbRequest, { uri })).toBe("run");
  });

  it("looks again when a parent on disk changes", async () => {
    const parent = join(folder, "base.yaml");
    writeFileSync(parent, `${sound}rollout: { batch_sise: 4 }\n`);
    const registered = new Promise((resolve) => {
      connection.onRequest("client/registerCapability", (params) => resolve(params));
    });
    await initialize({ workspace: { didChangeWatchedFiles: { dynamicRegistration: true } } });
    expect(await soon(registered, "registerCapability")).toMatchObject({
      registrations: [{ method: "workspace/didChangeWatchedFiles" }],
    });
    await open("# molt-runner\nextends: base.yaml\n");
    expect(await nextMessages()).toEqual([expect.stringContaining("batch_size")]);

    writeFileSync(parent, sound);
    await notify("workspace/didChangeWatchedFiles", { changes: [{ uri: pathToFileURL(parent).href, type: 2 }] });
    expect(await nextMessages()).toEqual([]);
  });

  it("clears what it said about a document that is closed", async () => {
    await initialize();
    await open(`${sound}rollout: { batch_sise: 4 }\n`);
    expect(await nextMessages()).toHaveLength(1);
    await notify("textDocument/didClose", { textDocument: { uri } });
    expect(await nextMessages()).toEqual([]);
  });

  it("leaves when its client is gone without a word", async () => {
    await initialize();
    child.stdin!.end();
    expect(await soon(exited, "exit")).toBe(1);
  });
});
