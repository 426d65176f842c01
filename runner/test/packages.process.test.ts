/** What users install: both packages packed, installed in an empty folder elsewhere, and tried from there. */
import { execFileSync, type SpawnOptions, spawn } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createProtocolConnection, StreamMessageReader, StreamMessageWriter } from "vscode-languageserver/node";
import { npmOnline } from "../../native/setup/packages.mjs";
import { deadlineMs, withDeadline } from "../src/deadline.ts";
import { stopAt } from "./inspector.ts";
import { root } from "./tree.ts";

let home: string;
let agent: string;
let cli: string;
const { MOLT_CLI: _, ...environment } = process.env;

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "molt-packages-"));
  agent = join(home, "my-agent");
  cli = join(home, "node_modules/molt-runner/bin/molt-runner.js");
  // Built by the set-up: a build here would take dist/ away under the other tests.
  const pack = ["pack", "--ignore-scripts", "--workspace=runner", "--workspace=native", `--pack-destination=${home}`];
  execFileSync("npm", pack, { cwd: root, stdio: "pipe" });
  writeFileSync(join(home, "package.json"), '{ "private": true }\n');
  const tarballs = readdirSync(home).filter((name) => name.endsWith(".tgz"));
  expect(tarballs.sort()).toEqual(["molt-native-0.1.0.tgz", "molt-runner-0.1.0.tgz"]);
  await npmOnline(["install", "--prefer-offline", ...tarballs.map((name) => `./${name}`)], home);
  expect(await run(["init", "my-agent", "--json"], { cwd: home })).toMatchObject({ code: 0 });
}, deadlineMs(300));
afterAll(() => rmSync(home, { recursive: true, force: true }));

interface Outcome {
  code: number | null;
  out: string;
  err: string;
}

/** Any command to its end; `watch` gets what is on standard error so far. */
function finished(command: string, args: string[], options: SpawnOptions, watch = (_: string) => {}): Promise<Outcome> {
  const child = spawn(command, args, { env: environment, ...options, stdio: ["ignore", "pipe", "pipe"] });
  let [out, err] = ["", ""];
  child.stdout!.on("data", (text) => (out += text));
  child.stderr!.on("data", (text) => {
    err += text;
    watch(err);
  });
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      child.kill("SIGKILL");
      reject(new Error(`still running: ${command} ${args.join(" ")}\n${out}${err}`));
    }, deadlineMs(120));
    child.once("close", (code) => {
      clearTimeout(timer);
      resolve({ code, out, err });
    });
  });
}

/** The installed command line, in the new agent's folder. */
const run = (words: string[], options: SpawnOptions = {}) =>
  finished(process.execPath, [cli, ...words], { cwd: agent, ...options });

const filesOf = (folder: string) =>
  readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((path) => statSync(join(folder, path)).isFile());

describe("the packages", () => {
  it("hold what is used, the licence, and nothing of the tests", () => {
    const runner = filesOf(join(home, "node_modules/molt-runner"));
    const native = filesOf(join(home, "node_modules/molt-native"));
    expect(runner).toEqual(
      expect.arrayContaining(["bin/molt-runner.js", "dist/cli.js", "dist/index.d.ts", "src/cli.ts"]),
    );
    expect(native).toEqual(expect.arrayContaining(["CMakeLists.txt", "index.d.ts", "src/core/model.cpp"]));
    for (const files of [runner, native]) {
      expect(files).toEqual(expect.arrayContaining(["LICENSE", "README.md", "package.json"]));
      expect(files.filter((path) => /\.test\.ts$|fixtures|(^|\/)test\//.test(path))).toEqual([]);
    }
    for (const name of ["runner", "native"]) {
      const licence = readFileSync(join(home, `node_modules/molt-${name}/LICENSE`), "utf8");
      expect(licence).toBe(readFileSync(join(root, "LICENSE"), "utf8"));
      expect(statSync(join(home, `molt-${name}-0.1.0.tgz`)).size).toBeLessThan(1e6);
    }
  });

  it("hold the code that links and the map lead to, with what the build says of it", async () => {
    const { code, out } = await run(["context", "--map", "--json"]);
    expect(code).toBe(0);
    const { rooms } = JSON.parse(out) as { rooms: { room: string; summary: string; files: { file: string }[] }[] };
    expect(rooms[0]).toMatchObject({ room: ".", files: [{ file: "agent.ts" }] });
    expect(rooms.find(({ room }) => room === "molt-runner/src/loop")?.summary).not.toBe("");
    const packaged = rooms.slice(1).flatMap(({ files }) => files.map(({ file }) => file));
    expect(packaged.length).toBeGreaterThan(100);
    expect(packaged.filter((file) => !existsSync(join(home, "node_modules", file)))).toEqual([]);
  });

  it("are started by npx", async () => {
    expect(await finished("npx", ["molt-runner", "--version"], { cwd: agent })).toMatchObject({
      code: 0,
      out: "0.1.0\n",
    });
  });
});

describe("without the native part and without a compiler", () => {
  const bare = () => ({ env: { MOLT_CACHE: join(home, "cache"), PATH: "", CXX: "" } });

  it("reading verbs work, and set nothing up", async () => {
    const check = await run(["check", "recipe.yaml"], bare());
    expect(check).toMatchObject({ code: 0, err: "" });
    expect(check.out).toContain("recipe.yaml is right: molt-runner run recipe.yaml\n");
    const doctor = await run(["doctor"], bare());
    expect(doctor.code).toBe(1);
    expect(doctor.out).toContain("missing   C++20 compiler: needs g++ 11 or newer");
    expect(doctor.out).toContain("fix: molt-runner setup");
    expect((await run(["serve", "--help"], bare())).code).toBe(0);
    expect(existsSync(join(home, "cache"))).toBe(false);
  });

  it("a verb that trains, and one that samples, set it up first: here they name what the set-up needs", async () => {
    for (const words of [["sft", "warmup.yaml"], ["serve", "--model", "model"], ["setup"]]) {
      const { code, err } = await run(words, bare());
      expect(code).toBe(2);
      if (words[0] !== "setup") expect(err).toContain("first use of the native part");
      expect(err).toMatch(/error missing: npm .*Python \(3\.10 or newer.*C\+\+20 compiler/);
    }
    expect(existsSync(join(agent, "runs"))).toBe(false);
  });

  it("setup --remove takes away what a set-up left, and nothing else", async () => {
    const cache = join(home, "cache");
    for (const name of ["addon-0123", "build-0123", "python-torch-2.13.0", "mine"]) {
      mkdirSync(join(cache, name), { recursive: true });
      writeFileSync(join(cache, name, "file"), "12345");
    }
    const { cache: listed } = JSON.parse((await run(["doctor", "--json"], bare())).out);
    expect(listed.entries[0]).toEqual({ path: join(cache, "addon-0123"), bytes: 5 });
    const { code, err } = await run(["setup", "--remove"], bare());
    expect([code, err.split("\n").length - 1]).toEqual([0, 3]);
    expect(err).toContain(`removed ${join(cache, "addon-0123")}\n`);
    expect(readdirSync(cache)).toEqual(["mine"]);
    expect((await run(["setup", "--remove"], bare())).err).toBe(`nothing to remove in ${cache}\n`);
  });
});

describe("the language server", () => {
  it("comes with the command line, and links to the installed runner's code", async () => {
    const stdio = ["pipe", "pipe", "inherit"] as const;
    const child = spawn(process.execPath, [cli, "lsp", "--stdio"], { cwd: agent, env: environment, stdio: [...stdio] });
    const ended = new Promise((resolve) => child.once("exit", resolve));
    const reader = new StreamMessageReader(child.stdout!);
    const connection = createProtocolConnection(reader, new StreamMessageWriter(child.stdin!));
    const soon = <T>(promise: Promise<T>) => withDeadline(promise, 30, "the language server");
    try {
      connection.listen();
      const rootUri = pathToFileURL(agent).href;
      await soon(connection.sendRequest("initialize", { processId: process.pid, rootUri, capabilities: {} }));
      const textDocument = { uri: pathToFileURL(join(agent, "recipe.yaml")).href };
      const lines = readFileSync(join(agent, "recipe.yaml"), "utf8").split("\n");
      const position = { line: lines.findIndex((line) => line.includes("batch_size:")), character: 4 };
      const asked = connection.sendRequest<{ contents: { value: string } }>("textDocument/hover", {
        textDocument,
        position,
      });
      const { contents } = await soon(asked);
      expect(contents.value).toContain("**rollout.batch_size**");
      const installed = pathToFileURL(realpathSync(join(home, "node_modules/molt-runner/src"))).href;
      expect(contents.value).toContain(`(${installed}/`);
      await soon(connection.sendRequest("shutdown"));
      await connection.sendNotification("exit");
      expect(await soon(ended)).toBe(0);
    } finally {
      connection.dispose();
      child.kill("SIGKILL");
    }
  });
});

describe("init", () => {
  it("overwrites nothing and names what is there", async () => {
    const mine = join(home, "mine");
    mkdirSync(join(mine, "data"), { recursive: true });
    for (const path of ["agent.ts", "data/train.jsonl", "other.txt"]) writeFileSync(join(mine, path), "mine");
    const { code, err } = await run(["init", "mine"], { cwd: home });
    expect(code).toBe(2);
    expect(err).toContain("error mine has files of these names already");
    expect(err).toContain("agent.ts, data/train.jsonl\n  fix: ");
    expect(filesOf(mine).sort()).toEqual(["agent.ts", "data/train.jsonl", "other.txt"]);
    expect(readFileSync(join(mine, "agent.ts"), "utf8")).toBe("mine");
    expect((await run(["init", "mine/agent.ts"], { cwd: home })).err).toContain("error mine/agent.ts is a file");
  });

  it("writes in a folder that holds other files, names the package after it, and says what comes next", async () => {
    const folder = join(home, "My Other_Agent");
    mkdirSync(folder);
    writeFileSync(join(folder, "notes.txt"), "mine");
    const { code, out } = await run(["init", ".", "--json"], { cwd: folder });
    expect(code).toBe(0);
    const report = JSON.parse(out);
    expect(report.folder).toBe(folder);
    expect(filesOf(folder).sort()).toEqual([...report.files, "notes.txt"].sort());
    expect(report.files).toEqual(
      expect.arrayContaining(["recipe.yaml", "agent.ts", "AGENTS.md", ".gitignore", ".vscode/launch.json"]),
    );
    expect(report.next[0]).toBe("npx molt-runner check recipe.yaml");
    const { name, devDependencies } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    expect([name, devDependencies]).toEqual(["my-other_agent", { "molt-runner": "0.1.0" }]);
  });
});

describe("the new agent", () => {
  const typescript = dirname(createRequire(import.meta.url).resolve("typescript/package.json"));
  const types = (folder: string) => finished(process.execPath, [join(typescript, "bin/tsc"), "-p", folder], {});

  it("is typed against the installed package, and tested by Node alone", async () => {
    expect(await types(agent)).toMatchObject({ code: 0, out: "" });
    expect(await finished("npm", ["test"], { cwd: agent })).toMatchObject({ code: 0 });

    const broken = join(home, "broken");
    cpSync(agent, broken, { recursive: true });
    const source = readFileSync(join(agent, "agent.ts"), "utf8");
    writeFileSync(join(broken, "agent.ts"), source.replace("isRight ? 1 : 0", '"1"'));
    expect((await types(broken)).out).toMatch(/agent\.ts\(7,\d+\): error TS2322: Type 'string' is not assignable/);
    const { code, out } = await finished("npm", ["test"], { cwd: broken });
    expect(code).toBe(1);
    expect(out).toContain("only the digits in order are rewarded");
  });

  it("a wrong recipe is one error with its place", async () => {
    const text = readFileSync(join(agent, "recipe.yaml"), "utf8");
    writeFileSync(join(agent, "wrong.yaml"), text.replace("batch_size:", "batchsize:"));
    const { code, err } = await run(["check", "wrong.yaml"]);
    expect(code).toBe(2);
    const line = text.split("\n").findIndex((one) => one.includes("batch_size:")) + 1;
    expect(err).toContain(
      `error wrong.yaml:${line}:3 unknown key 'batchsize' in 'rollout': did you mean 'batch_size'?`,
    );
  });

  it("trains with the addon of these sources, and stops at a breakpoint in agent.ts", async () => {
    expect((await run(["doctor"])).out).toContain("addon     loads: libtorch");
    const warmup = await run(["sft", "warmup.yaml", "--run.steps", "3"]);
    expect(warmup, warmup.err).toMatchObject({ code: 0 });
    const words = ["run", "recipe.yaml", "--run.steps", "2", "--rollout.batch_size", "4", "--eval.dataset", "null"];
    const file = join(agent, "agent.ts");
    const line =
      readFileSync(file, "utf8")
        .split("\n")
        .findIndex((one) => one.includes("const isRight")) + 1;
    let stop: ReturnType<typeof stopAt> | undefined;
    const outcome = await finished(process.execPath, ["--inspect-brk=0", cli, ...words], { cwd: agent }, (err) => {
      const url = /Debugger listening on (ws:\S+)/.exec(err)?.[1];
      if (url !== undefined) stop ??= stopAt(url, file, line);
    });
    expect(outcome, outcome.err).toMatchObject({ code: 0 });
    expect(await stop).toMatchObject({ file, line, functionName: "step" });
    const [directory] = readdirSync(join(agent, "runs")).filter((name) => name.startsWith("agent-"));
    const summary = JSON.parse(readFileSync(join(agent, "runs", directory!, "summary.json"), "utf8"));
    expect(summary).toMatchObject({ state: "completed", steps: 2 });
  });
});
