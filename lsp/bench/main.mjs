// What an editor waits for, measured over stdio on the built server, and the start of the command line beside it.
import { spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { createProtocolConnection, StreamMessageReader, StreamMessageWriter } from "vscode-languageserver/node";
import { buildServer } from "../build.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const recipe = join(root, "recipes", "quickstart.yaml");
const cli = join(root, "runner", "dist", "cli.js");
const server = fileURLToPath(new URL("../dist/server.cjs", import.meta.url));
const uri = pathToFileURL(join(root, "recipes", "bench.yaml")).href;
const keystrokes = 200;
const deadlineMs = 30_000;

const median = (sorted) => sorted[Math.floor(sorted.length / 2)];
const p99 = (sorted) => sorted[Math.ceil(sorted.length * 0.99) - 1];
const ms = (value) => `${value.toFixed(1)} ms`;

/** The quickstart's recipe, made long by comments and by a list of files. */
function longRecipe(lines) {
  const text = readFileSync(recipe, "utf8").replace("prompt_dataset: quickstart/prompts.jsonl", "prompt_dataset:");
  const [before, after] = text.split("prompt_dataset:");
  const rest = lines - text.split("\n").length;
  const files = Array.from({ length: Math.ceil(rest / 2) }, (_, i) => `\n    # part ${i}\n    - data/part-${i}.jsonl`);
  return `${before}prompt_dataset:${files.join("")}${after}`;
}

class Client {
  constructor() {
    this.started = performance.now();
    this.child = spawn(process.execPath, [server, "--stdio"], { stdio: ["pipe", "pipe", "inherit"] });
    const { stdout, stdin } = this.child;
    this.connection = createProtocolConnection(new StreamMessageReader(stdout), new StreamMessageWriter(stdin));
    this.connection.onNotification("textDocument/publishDiagnostics", (params) => this.published?.(params));
    this.connection.listen();
  }

  async open(text) {
    const params = { processId: process.pid, rootUri: pathToFileURL(root).href, capabilities: {} };
    await this.connection.sendRequest("initialize", params);
    await this.connection.sendNotification("initialized", {});
    this.version = 1;
    const textDocument = { uri, languageId: "yaml", version: 1, text };
    const published = this.publication();
    await this.connection.sendNotification("textDocument/didOpen", { textDocument });
    await published;
  }

  /** The diagnostics of the version of now. */
  publication() {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error("no diagnostics came")), deadlineMs);
      this.published = ({ version }) => {
        if (version !== this.version) return;
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** One character typed at a place; milliseconds until its diagnostics are there. */
  async type(position, text) {
    this.version++;
    const published = this.publication();
    const started = performance.now();
    const contentChanges = [{ range: { start: position, end: position }, text }];
    const textDocument = { uri, version: this.version };
    await this.connection.sendNotification("textDocument/didChange", { textDocument, contentChanges });
    await published;
    return performance.now() - started;
  }

  async request(method, params) {
    const started = performance.now();
    await this.connection.sendRequest(method, { textDocument: { uri }, ...params });
    return performance.now() - started;
  }

  /** Since its start; in ticks of 10 ms, which is what Linux counts in. */
  processorMs() {
    const fields = readFileSync(`/proc/${this.child.pid}/stat`, "utf8").split(" ");
    return (Number(fields[13]) + Number(fields[14])) * 10;
  }

  async close() {
    await this.connection.sendRequest("shutdown");
    await this.connection.sendNotification("exit");
    this.connection.dispose();
  }
}

async function sorted(times, measure) {
  const values = [];
  for (let i = 0; i < times; i++) values.push(await measure(i));
  return values.sort((a, b) => a - b);
}

function report(name, values, aim = "") {
  console.log(
    `${name.padEnd(52)} median ${ms(median(values)).padStart(9)}  p99 ${ms(p99(values)).padStart(9)}  ${aim}`,
  );
}

async function measureServer() {
  const text = longRecipe(500);
  const starts = await sorted(5, async () => {
    const client = new Client();
    await client.open(text);
    const took = performance.now() - client.started;
    await client.close();
    return took;
  });
  report("start to first diagnostic", starts);

  const client = new Client();
  await client.open(text);
  const lines = text.split("\n");
  const row = lines.findIndex((line) => line.startsWith("  temperature:"));
  const place = { line: row, character: lines[row].length };
  const first = await client.request("textDocument/hover", { position: { line: row, character: 4 } });
  console.log(`${"first hover (reads the code that it links to)".padEnd(52)}        ${ms(first).padStart(9)}`);
  // A comment grows: each keystroke is a version of its own.
  await client.type(place, " #");
  const at = (i) => ({ line: row, character: place.character + 2 + i });
  const before = client.processorMs();
  const typed = await sorted(keystrokes, (i) => client.type(at(i), "x"));
  report("diagnostics after a keystroke, 500 lines", typed, "< 30 ms");
  const spent = (client.processorMs() - before) / keystrokes;
  console.log(`${"  of it processor time, all threads".padEnd(52)} mean   ${ms(spent).padStart(9)}`);
  // After a keystroke, so that nothing is left from the last answer.
  const after = (method, params) => async () => {
    await client.type(place, " ");
    return client.request(method, params);
  };
  const position = { line: row, character: 4 };
  report("completion", await sorted(50, after("textDocument/completion", { position })), "< 20 ms");
  report("hover", await sorted(50, after("textDocument/hover", { position })), "< 20 ms");
  const range = { start: { line: 0, character: 0 }, end: { line: lines.length, character: 0 } };
  report("inlay hints", await sorted(50, after("textDocument/inlayHint", { range })));
  const memory = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${client.child.pid}/status`, "utf8"))?.[1];
  console.log(`${"memory of the server".padEnd(52)}        ${(memory / 1024).toFixed(0).padStart(6)} MB`);
  await client.close();
}

async function measureCli() {
  const started = async (...words) => {
    const before = performance.now();
    const { status, stderr } = spawnSync(process.execPath, [cli, ...words], { cwd: root, encoding: "utf8" });
    if (status !== 0) throw new Error(`molt-runner ${words.join(" ")}: ${stderr}`);
    await sleep(50);
    return performance.now() - before - 50;
  };
  report("molt-runner --help", await sorted(11, () => started("--help")), "< 150 ms");
  report("molt-runner check recipes/quickstart.yaml", await sorted(7, () => started("check", recipe)), "< 1 s");
}

console.log(`Node ${process.version}, ${cpus().length} x ${cpus()[0]?.model}`);
await buildServer(server);
await measureServer();
await measureCli();
