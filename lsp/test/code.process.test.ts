/** A user's own folder, as `init` makes it, through the built command line; nothing in it is ever executed. */
import { execFileSync, spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import {
  type CodeLens,
  createProtocolConnection,
  type InitializeResult,
  type Location,
  StreamMessageReader,
  StreamMessageWriter,
  type WorkspaceSymbol,
} from "vscode-languageserver/node";
import { withDeadline } from "../../runner/src/deadline.ts";
import { type CodeMapResult, type ContextResult, codeMapRequest, contextRequest } from "../src/requests.ts";

const cli = process.env.MOLT_CLI!;
const home = realpathSync(mkdtempSync(join(tmpdir(), "molt-trap-")));
const folder = join(home, "agent");
const executed = join(folder, "executed");
const uriOf = (name: string) => pathToFileURL(join(folder, name)).href;

const trap = `import { writeFileSync } from "node:fs";
writeFileSync(new URL("executed", import.meta.url), "");
class Env {}
/** Writes a file as soon as it is imported. */
export default class Trap extends Env {
  step() {}
}
`;
/** The native part is an addon: a verb that loads it fails here. */
const hook = 'process.dlopen = (_, file) => { throw new Error("loads " + file); };\n';

beforeAll(() => {
  execFileSync(process.execPath, [cli, "init", folder], { stdio: "pipe" });
  mkdirSync(join(folder, "node_modules"));
  symlinkSync(fileURLToPath(new URL("../../runner", import.meta.url)), join(folder, "node_modules/molt-runner"), "dir");
  rmSync(join(folder, "agent.ts"));
  writeFileSync(join(folder, "agent.mjs"), trap);
  writeFileSync(join(home, "hook.cjs"), hook);
  const recipe = readFileSync(join(folder, "recipe.yaml"), "utf8");
  const mine = recipe.replace("agent.ts", "agent.mjs").replace("reinforce_baseline", "rloo");
  writeFileSync(join(folder, "recipe.yaml"), mine);
});
afterAll(() => rmSync(home, { recursive: true, force: true }));
beforeEach(() => rmSync(executed, { force: true }));

function run(...words: string[]): { code: number | null; out: string; err: string } {
  const env = { ...process.env, NODE_OPTIONS: `--require ${join(home, "hook.cjs")}` };
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, ...words], {
    cwd: folder,
    env,
    encoding: "utf8",
  });
  return { code: status, out: stdout, err: stderr };
}

it("the fixture does write when it is imported", () => {
  execFileSync(process.execPath, [join(folder, "agent.mjs")]);
  expect(existsSync(executed)).toBe(true);
});

describe("without executing it", () => {
  it.each([
    ["check", "recipe.yaml"],
    ["plan", "recipe.yaml"],
    ["context", "--room", "."],
    ["context", "--map"],
  ])("%s %s", (...words) => {
    const { code, out, err } = run(...words);
    expect(code, err).toBe(0);
    expect(out).not.toBe("");
    expect(existsSync(executed)).toBe(false);
  });

  it("context --map has this folder's code and the package's, each file where it says", () => {
    const { rooms } = JSON.parse(run("context", "--map", "--json").out) as CodeMapResult;
    const [own] = rooms;
    expect(own).toMatchObject({
      room: ".",
      files: [{ file: "agent.mjs", summary: "Writes a file as soon as it is imported", exports: ["Trap"] }],
    });
    // The line is of the AGENTS.md that the build put there.
    const algorithms = rooms.find(({ room }) => room === "molt-runner/src/algorithms");
    expect(algorithms?.summary).toContain("advantages, losses");
    const packaged = rooms.slice(1).flatMap(({ files }) => files.map(({ file }) => file));
    expect(packaged.filter((file) => !existsSync(join(folder, "node_modules", file)))).toEqual([]);
  });

  it("context keeps its budget, and refuses a room that is not there", () => {
    const { text, tokens, files } = JSON.parse(run("context", "--budget", "3000", "--json").out) as ContextResult;
    expect(text.length / 3.8).toBeLessThanOrEqual(3000);
    expect([tokens, files[0]]).toEqual([Math.ceil(text.length / 3.8), { file: "agent.mjs", form: expect.anything() }]);
    expect(run("context", "--room", "algorithms", "--budget", "50000").out).toContain("export const rloo: Adv");
    expect(run("context", "--room", "algoritms")).toMatchObject({ code: 2, out: "" });
    expect(run("context", "--map", "--budget", "9").err).toContain(
      "'--budget <tokens>' cannot be used with option '--map'",
    );
    expect(run("context", "--room", "algoritms").err).toContain(
      "error there is no room 'algoritms'\n  fix: take one of .,",
    );
  });

  it("the language server, which leads from recipes to code and back", async () => {
    const child = spawn(process.execPath, [cli, "lsp", "--stdio"], { cwd: home, stdio: ["pipe", "pipe", "inherit"] });
    const [reader, writer] = [new StreamMessageReader(child.stdout), new StreamMessageWriter(child.stdin)];
    const connection = createProtocolConnection(reader, writer, undefined);
    connection.listen();
    const ask = <T>(method: string, params?: object) =>
      withDeadline(connection.sendRequest<T>(method, params), 60, method);
    try {
      const rootUri = pathToFileURL(folder).href;
      const client = { textDocument: { formatting: { dynamicRegistration: true } } };
      const { capabilities } = await ask<InitializeResult>("initialize", { rootUri, capabilities: client });
      const registered = new Promise((resolve) => connection.onRequest("client/registerCapability", resolve));
      await connection.sendNotification("initialized", {});
      // Code has its own formatters.
      expect(capabilities.documentFormattingProvider).toBe(false);
      expect(await withDeadline(registered, 60, "client/registerCapability")).toMatchObject({
        registrations: [
          { method: "textDocument/formatting", registerOptions: { documentSelector: [{ language: "yaml" }] } },
        ],
      });
      for (const [name, languageId] of [
        ["agent.mjs", "javascript"],
        ["recipe.yaml", "yaml"],
      ] as const) {
        const text = readFileSync(join(folder, name), "utf8");
        await connection.sendNotification("textDocument/didOpen", {
          textDocument: { uri: uriOf(name), languageId, version: 1, text },
        });
      }
      const lenses = await ask<CodeLens[]>("textDocument/codeLens", { textDocument: { uri: uriOf("agent.mjs") } });
      expect(lenses.map(({ command }) => command!.title)).toEqual(["used by 1 recipe"]);

      const lines = readFileSync(join(folder, "recipe.yaml"), "utf8").split("\n");
      const line = lines.findIndex((text) => text.includes("rloo"));
      const position = { line, character: lines[line]!.indexOf("rloo") };
      const at = { textDocument: { uri: uriOf("recipe.yaml") }, position };
      const [place] = await ask<Location[]>("textDocument/definition", at);
      expect(place!.uri).toMatch(/\/src\/algorithms\/advantages\/rloo\.ts$/);
      expect(readFileSync(fileURLToPath(place!.uri), "utf8").split("\n")[place!.range.start.line]).toContain(
        "rloo: Adv",
      );
      const back = { textDocument: { uri: place!.uri }, position: place!.range.start, context: {} };
      const references = await ask<Location[]>("textDocument/references", back);
      expect(references).toContainEqual({
        uri: uriOf("recipe.yaml"),
        range: expect.objectContaining({ start: position }),
      });
      await expect(ask("textDocument/rename", { ...at, newName: "mine" })).rejects.toThrow("is the runner's own");

      const symbols = await ask<WorkspaceSymbol[]>("workspace/symbol", { query: "Trap" });
      expect(symbols.find(({ name }) => name === "Trap")?.location).toMatchObject({ uri: uriOf("agent.mjs") });
      const { rooms } = await ask<CodeMapResult>(codeMapRequest);
      expect(rooms.map(({ room }) => room)).toEqual(expect.arrayContaining([".", "molt-runner/src/loop"]));
      const query = { rooms: ["algorithms"], budget: 2000 };
      expect((await ask<ContextResult>(contextRequest, query)).tokens).toBeLessThanOrEqual(2000);
      await ask("shutdown");
    } finally {
      connection.dispose();
      child.kill("SIGKILL");
    }
    expect(existsSync(executed)).toBe(false);
  });
});
