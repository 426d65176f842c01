import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import {
  type CodeAction,
  type CodeLens,
  type CompletionItem,
  createProtocolConnection,
  type Diagnostic,
  type Hover,
  type InitializeResult,
  type InlayHint,
  type Location,
  type ProtocolConnection,
  StreamMessageReader,
  StreamMessageWriter,
  type TextEdit,
} from "vscode-languageserver/node";
import { deadlineMs, withDeadline } from "../../runner/src/deadline.ts";
import { explainRequest, planRequest, resolveRequest } from "../src/requests.ts";

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

/** From now on. */
function publications(from: ProtocolConnection): AsyncGenerator<Diagnostic[]> {
  const arrived: Diagnostic[][] = [];
  let wake = () => {};
  from.onNotification("textDocument/publishDiagnostics", (params: { uri: string; diagnostics: Diagnostic[] }) => {
    if (params.uri !== uri) return;
    arrived.push(params.diagnostics);
    wake();
  });
  return (async function* () {
    for (;;) {
      if (arrived.length > 0) yield arrived.shift()!;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
  })();
}

const soon = <T>(promise: Promise<T>, what: string): Promise<T> => withDeadline(promise, 30, what);
const request = <T>(method: string, params?: unknown) => soon(connection.sendRequest<T>(method, params), method);
const notify = (method: string, params: unknown) => connection.sendNotification(method, params);
const nextMessages = async () => {
  const { value } = await soon(published.next(), "publishDiagnostics");
  return (value as Diagnostic[]).map(({ message }) => message);
};

async function initialize(capabilities: object = {}): Promise<InitializeResult> {
  const params = { processId: process.pid, rootUri: pathToFileURL(folder).href, capabilities };
  const result = await request<InitializeResult>("initialize", params);
  await notify("initialized", {});
  return result;
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
    expect(await request(resolveRequest, { uri })).toMatchObject({ verb: "sft" });
    await open(sound);
    expect(await request(resolveRequest, { uri })).toMatchObject({ verb: "run" });
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

  it("formats YAML alone where the editor lets it say so, and offers nothing in code", async () => {
    const registered = new Promise((resolve) => connection.onRequest("client/registerCapability", resolve));
    const { capabilities } = await initialize({ textDocument: { formatting: { dynamicRegistration: true } } });
    expect(capabilities.documentFormattingProvider).toBe(false);
    const registerOptions = { documentSelector: [{ language: "yaml" }] };
    expect(await soon(registered, "registerCapability")).toMatchObject({
      registrations: [{ method: "textDocument/formatting", registerOptions }],
    });
    await open("run: { s }\nactor: {}\n");
    const position = { line: 0, character: 8 };
    expect(await request("textDocument/completion", { textDocument: { uri }, position })).not.toEqual([]);
    const code = { uri: `${uri}.ts`, languageId: "typescript", version: 1, text: "run: { s }\nactor: {}\n" };
    await notify("textDocument/didOpen", { textDocument: code });
    expect(await request("textDocument/completion", { textDocument: { uri: code.uri }, position })).toEqual([]);
  });

  it("answers an editor about a position and a document", async () => {
    writeFileSync(join(folder, "prompts.jsonl"), '{"prompt": "1 2", "label": "2 1"}\n');
    writeFileSync(join(folder, "agent.ts"), "");
    await initialize();
    await open(`${sound}rollout:\n    batch_size:   4\ndata2: x\n`);
    const at = (line: number, character: number) => ({ textDocument: { uri }, position: { line, character } });
    const textDocument = { uri };
    const hover = await request<Hover>("textDocument/hover", at(5, 6));
    expect(hover.contents).toMatchObject({ value: expect.stringContaining("**rollout.batch_size**: an integer") });
    const keys = await request<CompletionItem[]>("textDocument/completion", at(5, 4));
    expect(keys.map(({ label }) => label)).toContain("temperature");
    const agent = pathToFileURL(join(folder, "agent.ts")).href;
    expect(await request("textDocument/definition", at(3, 25))).toMatchObject([{ uri: agent }]);
    const users = await request<Location[]>("textDocument/references", { ...at(3, 25), context: {} });
    expect(users.map((user) => user.uri)).toContain(uri);
    expect(await request("textDocument/prepareRename", at(5, 6))).toMatchObject({ placeholder: "batch_size" });
    await expect(request("textDocument/rename", { ...at(5, 6), newName: "size" })).rejects.toThrow(/not among them/);
    expect(await request("textDocument/documentSymbol", { textDocument })).toHaveLength(5);
    expect(await request("workspace/symbol", { query: "sort.yaml" })).toMatchObject([{ name: "sort.yaml" }]);
    expect(await request("textDocument/foldingRange", { textDocument })).toMatchObject([{ startLine: 4, endLine: 5 }]);
    const range = { start: { line: 0, character: 0 }, end: { line: 9, character: 0 } };
    const hints = await request<InlayHint[]>("textDocument/inlayHint", { textDocument, range });
    expect(hints).toMatchObject([{ label: "= 32 rows a step", position: { line: 5, character: 19 } }]);
    const lenses = await request<CodeLens[]>("textDocument/codeLens", { textDocument });
    expect(lenses.map(({ command }) => command!.title)).toEqual(["run", "plan", "check"]);
    const [edit] = await request<TextEdit[]>("textDocument/formatting", { textDocument, options: {} });
    expect(edit!.newText).toContain("rollout:\n  batch_size: 4\n");
  });

  it("reads the columns of the dataset that the recipe names", async () => {
    writeFileSync(join(folder, "prompts.jsonl"), '{"prompt": "1 2", "label": "2 1"}\n');
    await initialize();
    await open("# molt-runner\ndata: { prompt_dataset: prompts.jsonl, input_key:  }\n");
    const position = { line: 1, character: 50 };
    const items = await request<CompletionItem[]>("textDocument/completion", { textDocument: { uri }, position });
    expect(items.map(({ label }) => label)).toEqual(expect.arrayContaining(["prompt", "label"]));
  });

  it("answers its own requests, and with null about what is no recipe", async () => {
    await initialize();
    await open(`${sound}rollout: { batch_size: 4 }\n`);
    expect(await request(resolveRequest, { uri })).toMatchObject({
      verb: "run",
      recipe: { rollout: { batch_size: 4, n_samples_per_prompt: 8 } },
      yaml: expect.stringContaining("batch_size: 4  # "),
    });
    const explained = await request(explainRequest, { uri, key: "rollout.batch_size" });
    expect(explained).toMatchObject({ value: 4, default: 128, provenance: expect.stringMatching(/sort\.yaml:5:24$/) });
    expect((explained as { text: string }).text).toContain("flag `--rollout.batch_size`");
    // There is no model folder here.
    expect(await request(planRequest, { uri })).toMatchObject({ plan: null, why: expect.stringContaining("config") });
    for (const method of [resolveRequest, planRequest, explainRequest]) {
      expect(await request(method, { uri: `${uri}.txt`, key: "rollout.batch_size" })).toBeNull();
    }
  });

  it.each([
    ["another machine's", "file://host/share/sort.yaml"],
    ["a slash in a name", "file:///a%2Fsort.yaml"],
    ["half an escape", "file:///%z.yaml"],
    ["an unsaved one", "untitled:sort.yaml"],
    ["no address", "sort.yaml"],
  ])("takes a document whose address is no file of this machine: %s", async (_, address) => {
    await initialize();
    const textDocument = { uri: address };
    const opened = { ...textDocument, languageId: "yaml", version: 1, text: sound };
    await notify("textDocument/didOpen", { textDocument: opened });
    await notify("textDocument/didChange", { textDocument: { ...textDocument, version: 2 }, contentChanges: [] });
    const position = { line: 1, character: 1 };
    expect(await request("textDocument/hover", { textDocument, position })).toBeNull();
    expect(await request(planRequest, textDocument)).toBeNull();
    await notify("textDocument/didClose", { textDocument });
    await open(sound);
    expect(await nextMessages()).toEqual([]);
  });

  it("takes edits out of order, past the end, and of what is not open", async () => {
    await initialize();
    const change = (version: number, ...contentChanges: object[]) =>
      notify("textDocument/didChange", { textDocument: { uri, version }, contentChanges });
    await change(1, { text: "never opened" });
    await open(`${sound}run: { name: 🙂, seed: 1 }\n`);
    const pending = request<Hover>("textDocument/hover", {
      textDocument: { uri },
      position: { line: 4, character: 17 },
    });
    // The name is two units; the end of the second edit is far behind the text's.
    await change(0, { range: { start: { line: 4, character: 13 }, end: { line: 4, character: 15 } }, text: "a" });
    const far = { line: 9e5, character: 9e5 };
    await change(7, { range: { start: { line: 5, character: 0 }, end: far }, text: "rollout: { batch_sise: 1 }" });
    expect((await pending).contents).toMatchObject({ value: expect.stringContaining("**run.seed**") });
    const now = await request<Hover>("textDocument/hover", {
      textDocument: { uri },
      position: { line: 4, character: 16 },
    });
    expect(now.range).toMatchObject({ start: { character: 16 } });
    // Those of the text before may come first.
    let messages = await nextMessages();
    while (!messages.join().includes("batch_sise")) messages = await nextMessages();
    expect(messages).toHaveLength(1);
  });

  it.each([
    ["nothing", ""],
    ["a mark of its byte order", "\ufeff"],
    ["Windows line ends", sound.replaceAll("\n", "\r\n")],
    ["a megabyte", `${sound}${"# filling\n".repeat(1e5)}`],
    ["a megabyte of one list", `${sound}eval: { dataset: [${"a.jsonl, ".repeat(1.2e5)}] }\n`],
    ["a megabyte of braces", `# molt-runner\na: ${"{ a: ".repeat(2e5)}`],
    ["an alias that multiplies", `# molt-runner\na: &a [x, x]\nb: &b [*a, *a]\nrun: { name: *b }\n`],
    ["an alias without its anchor", "# molt-runner\nrun: { name: *a }\n"],
    ["a list", "# molt-runner\n- a\n"],
    ["tabs", "# molt-runner\nrun:\n\tseed: 1\n"],
  ])("stands a document of %s, and answers every request about it", async (_, text) => {
    await initialize();
    await open(text);
    await nextMessages();
    const textDocument = { uri };
    const range = { start: { line: 0, character: 0 }, end: { line: 2, character: 0 } };
    const options = { tabSize: 2, insertSpaces: true };
    for (const position of [range.start, range.end, { line: 1e6, character: 9 }]) {
      for (const method of ["completion", "hover", "definition", "references", "prepareRename"]) {
        await request(`textDocument/${method}`, { textDocument, position, context: {} });
      }
    }
    for (const method of ["documentSymbol", "foldingRange", "codeLens", "inlayHint", "codeAction", "formatting"]) {
      await request(`textDocument/${method}`, { textDocument, range, options, context: { diagnostics: [] } });
    }
    await request("workspace/symbol", { query: "" });
    await request("shutdown");
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
