import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { TextDocument } from "vscode-languageserver-textdocument";
import { columnsOf } from "../src/columns.ts";
import { Files } from "../src/files.ts";

let folder: string;
const at = (...names: string[]) => join(folder, ...names);
const recipe = "actor: { init: random }\ndata: { max_len: 64 }\n";

beforeAll(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), "molt-files-")));
  mkdirSync(at("deep", "er"), { recursive: true });
  mkdirSync(at("node_modules"));
  writeFileSync(at("a.yaml"), recipe);
  writeFileSync(at("deep", "er", "b.yml"), recipe);
  writeFileSync(at("node_modules", "c.yaml"), recipe);
  writeFileSync(at("compose.yaml"), "services: {}\n");
  symlinkSync(at("deep"), at("round"));
  symlinkSync(at(), at("deep", "loop"));
});
afterAll(() => rmSync(folder, { recursive: true }));

describe("the files of a workspace", () => {
  it("are what the editor has open, before the disk", () => {
    const open = new Map<string, TextDocument>();
    const files = new Files(open);
    files.roots = [folder];
    expect(files.readFile(at("a.yaml"))).toBe(recipe);
    // Addresses are the editor's own.
    const uri = pathToFileURL(at("a.yaml")).href.replace("a.yaml", "%61.yaml");
    open.set(at("a.yaml"), TextDocument.create(uri, "yaml", 1, "run: {}\n"));
    files.forget("recipes");
    expect(files.document(at("a.yaml"))).toEqual({ uri, path: at("a.yaml"), text: "run: {}\n" });
    expect(files.readFile(at("nosuch.yaml"))).toBeUndefined();
    expect(files.readFile(folder)).toBeUndefined();
  });

  it("have every recipe below the roots, those of packages and links left out", () => {
    const files = new Files(new Map());
    files.roots = [folder];
    const names = () => files.recipes().map(({ path }) => path.slice(folder.length + 1));
    expect(names()).toEqual(["a.yaml", join("deep", "er", "b.yml")]);
    writeFileSync(at("new.yaml"), recipe);
    files.forget("recipes");
    expect(names()).not.toContain("new.yaml");
    files.forget("disk");
    expect(names()).toContain("new.yaml");
  });

  it("do not hang on what has no end", () => {
    expect(new Files(new Map()).readFile("/dev/zero")).toBeUndefined();
  });

  it("give the code in slices, with other work between", async () => {
    for (let i = 0; i < 10; i++) writeFileSync(at(`code-${i}.ts`), `export const a = [${"1, ".repeat(4000)}];\n`);
    const files = new Files(new Map());
    files.roots = [folder];
    let between = 0;
    const other = setInterval(() => between++, 0);
    await files.readCode();
    clearInterval(other);
    expect(between).toBeGreaterThan(1);
    expect(files.code.files.map(({ name }) => name)).toContain("code-9.ts");
  });

  it("list a folder, links by what they lead to, and nothing where there is none", () => {
    const files = new Files(new Map());
    expect(files.listFolder(folder)).toEqual(expect.arrayContaining(["a.yaml", "deep/", "round/"]));
    expect(files.listFolder(at("nosuch"))).toEqual([]);
  });
});

describe("columns", () => {
  const row = { prompt: "1 2", label: "2 1" };
  const jsonl = `${JSON.stringify(row)}\n${JSON.stringify({ ...row, hint: 1 })}\n`;
  // Larger than what is read of it; the last row that is read is cut.
  const large = jsonl + `${JSON.stringify({ ...row, text: "x".repeat(1000) })}\n`.repeat(3000);

  it.each([
    ["JSON lines", "a.jsonl", jsonl],
    ["JSON lines, with a mark of their byte order", "bom.jsonl", `\ufeff${jsonl}`],
    ["JSON lines, compressed", "a.jsonl.gz", gzipSync(jsonl)],
    ["a list", "a.json", JSON.stringify([row, { ...row, hint: 1 }])],
    ["CSV", "a.csv", 'prompt,label,hint\n"1, 2",3,4\n'],
  ])("of %s", async (_, name, content) => {
    writeFileSync(at(name), content);
    expect(await columnsOf(at(name))).toEqual(["prompt", "label", "hint"]);
  });

  it("of the first rows of a large file, compressed or not", async () => {
    writeFileSync(at("large.jsonl"), large);
    writeFileSync(at("large.jsonl.gz"), gzipSync(large, { level: 0 }));
    for (const name of ["large.jsonl", "large.jsonl.gz"]) {
      expect(await columnsOf(at(name))).toEqual(["prompt", "label", "hint", "text"]);
    }
  });

  it("of Parquet, from its footer", async () => {
    // Written by pyarrow: runner/src/data/fixtures/make_datasets.py.
    const fixture = new URL("../../runner/src/data/fixtures/datasets/texts.parquet", import.meta.url);
    expect(await columnsOf(fileURLToPath(fixture))).toEqual(["q", "a"]);
  });

  it("none of what cannot be read", async () => {
    writeFileSync(at("bad.parquet"), "no");
    writeFileSync(at("bad.json"), "{");
    writeFileSync(at("bad.gz"), "no");
    // A pipe that nobody writes to.
    execFileSync("mkfifo", [at("pipe.jsonl")]);
    for (const name of ["pipe.jsonl", "bad.parquet", "bad.json", "bad.gz", "nosuch.jsonl", "a.yaml", "deep"]) {
      expect(await columnsOf(at(name))).toEqual([]);
    }
  });
});
