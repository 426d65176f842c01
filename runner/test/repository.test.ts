import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { getEncoding } from "js-tiktoken";
import { describe, expect, it } from "vitest";
import { recipeKeys, recipeSections } from "../src/recipe/schema.ts";
import { files, read, root } from "./tree.ts";

/** Lines that are neither blank nor comment alone. */
function codeLines(path: string): number {
  let inBlock = false;
  return read(path)
    .split("\n")
    .filter((line) => {
      const text = line.trim();
      if (inBlock) {
        inBlock = !text.includes("*/");
        return false;
      }
      if (text.startsWith("/*")) {
        inBlock = !text.includes("*/");
        return false;
      }
      return text !== "" && !text.startsWith("//");
    }).length;
}

/** Code of the product: no tests, no declarations that only repeat what is there, no benchmarks. */
const isSource = (path: string) =>
  /\.(ts|mjs|js|h|cpp)$/.test(path) && !/\.test\.ts$|\.d\.ts$|\/(test|fixtures|bench)\//.test(path);
const inCore = (path: string) => /^runner\/src\/(loop|agents|algorithms|trainer|engines|data)\//.test(path);
const inEngine = (path: string) => path.startsWith("runner/src/engines/embedded/");
const isCore = (path: string) => inCore(path) && !inEngine(path);

it("AGENTS.md is at most 80 lines", () => {
  expect(read("AGENTS.md").split("\n").length).toBeLessThanOrEqual(81);
});

describe.each(["AGENTS.md", "README.md", "docs/index.md", "docs/recipes.md"])("%s", (document) => {
  const text = read(document);
  const fenced = [...text.matchAll(/^```.*\n([^`]*)^```$/gm)].flatMap((match) => match[1]!.split("\n"));
  const quoted = [...text.replace(/^```[^`]*```$/gm, "").matchAll(/`([^`\n]+)`/g)].map((match) => match[1]!);
  const commands = [...quoted, ...fenced];
  const named = (pattern: RegExp, from = commands) => from.flatMap((word) => word.match(pattern)?.[1] ?? []);

  it("names only paths that exist", () => {
    const paths = named(/^([\w.-]+\/[\w./-]*)$/, quoted).filter(
      (path) => !/^(runs|export|rollouts|checkpoints)\//.test(path),
    );
    const linked = [...text.matchAll(/\]\(([^):]+)\)/g)].map((match) => join(dirname(document), match[1]!));
    expect(paths.length + linked.length).toBeGreaterThan(0);
    expect([...paths, ...linked].filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });

  it("names only commands and recipe keys that are there", () => {
    const scripts = JSON.parse(read("package.json")).scripts as Record<string, string>;
    const npm = named(/^npm (?:run )?([\w:]+)/);
    expect(npm.length).toBeGreaterThan(0);
    expect(npm.filter((name) => !(name in scripts) && !["install", "pack"].includes(name))).toEqual([]);
    const cli = [...read("runner/src/cli.ts").matchAll(/(?:\bcommand\(|Verb\(program, )"([a-z]+)/g)];
    const verbs = named(/^(?:npx )?molt-runner ([a-z]+)/);
    expect(verbs.length).toBeGreaterThan(0);
    expect(verbs.filter((verb) => !cli.some((match) => match[1] === verb))).toEqual([]);
    const keys = [...named(/^([a-z]+\.[a-z_.]+)$/, quoted).filter((word) => recipeSections.has(word.split(".")[0]!))];
    const flags = commands.flatMap((word) => [...word.matchAll(/--([a-z]+\.[a-z_.]+)/g)].map((match) => match[1]!));
    expect([...keys, ...flags].filter((key) => !recipeKeys.has(key))).toEqual([]);
  });
});

// The core's budget is what the Python original takes, which has no engine of its own: ours is counted apart.
describe("budgets (DESIGN: read it in one sitting)", () => {
  const sources = files.filter(isSource);
  const encoding = getEncoding("o200k_base");
  const linesOf = (paths: string[]) => paths.reduce((lines, path) => lines + codeLines(path), 0);
  const tokensOf = (paths: string[]) =>
    paths.reduce((tokens, path) => tokens + encoding.encode(read(path), [], []).length, 0);

  it.each([
    ["the core", 9730, isCore],
    ["the embedded engine", 1425, inEngine],
    ["the rest of runner/", 8590, (path: string) => path.startsWith("runner/") && !inCore(path)],
    ["native/", 5640, (path: string) => path.startsWith("native/")],
    ["extension/", 3360, (path: string) => path.startsWith("extension/")],
  ])("%s stays within %i lines of code", (_, most, belongs) => {
    const lines = linesOf(sources.filter(belongs));
    expect(lines).toBeGreaterThan(100);
    expect(lines).toBeLessThanOrEqual(most);
  });

  it.each([
    ["the core", 139_000, isCore],
    ["everything", 432_450, () => true],
  ])("%s fits in %i tokens of o200k", (_, most, belongs) => {
    expect(tokensOf(sources.filter(belongs))).toBeLessThanOrEqual(most);
  });

  it("no line of code is wider than 120, tests included", () => {
    const code = files.filter((path) => /\.(ts|mjs|js|h|cpp|py)$/.test(path));
    const wide = code.flatMap((path) =>
      read(path)
        .split("\n")
        // In bytes, as a plain awk counts.
        .flatMap((line, index) => (Buffer.byteLength(line) > 120 ? [`${path}:${index + 1}`] : [])),
    );
    expect(wide).toEqual([]);
  });
});

describe("the tree", () => {
  it("names no path of a machine and no registry's host", () => {
    const text = files.filter((path) => !/\.(png|safetensors|bin|npz)$|package-lock\.json$/.test(path));
    const pattern = /(^|[\s"'`(=])\/(work|root|home|Users)\/[a-z]|registry\.npmjs|pypi\.org|files\.pythonhosted/;
    const self = "runner/test/repository.test.ts";
    expect(text.filter((path) => path !== self && pattern.test(read(path)))).toEqual([]);
  });

  it("has no skipped or focused test", () => {
    const tests = files.filter((path) => path.endsWith(".test.ts") && path !== "runner/test/repository.test.ts");
    expect(tests.filter((path) => /\b(it|test|describe)\.(skip|todo|only)\b/.test(read(path)))).toEqual([]);
  });

  it("has every command of its packages in place before anything is built, so that npm links it", () => {
    const commands = ["runner", "lsp"].flatMap((workspace) => {
      const { bin } = JSON.parse(read(`${workspace}/package.json`)) as { bin: Record<string, string> };
      return Object.values(bin).map((path) => `${workspace}/${path}`);
    });
    expect(commands.filter((path) => !files.includes(path))).toEqual([]);
  });
});
