import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const root = new URL("../../", import.meta.url).pathname;
const read = (path: string) => readFileSync(root + path, "utf8");
const files = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard"], {
  cwd: root,
  encoding: "utf8",
})
  .split("\n")
  .filter((path) => path !== "" && existsSync(root + path));

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

const isSource = (path: string) => /\.(ts|mjs|js|h|cpp)$/.test(path) && !/\.test\.ts$|\/test\/|\/fixtures\//.test(path);
const core = /^runner\/src\/(loop|agents|algorithms|trainer|engines|data)\//;

describe("AGENTS.md", () => {
  const text = read("AGENTS.md");

  it("is at most 80 lines", () => {
    expect(text.split("\n").length).toBeLessThanOrEqual(81);
  });

  it("names only paths that exist and commands that run", () => {
    const quoted = [...text.matchAll(/`([^`\n]+)`/g)].map((match) => match[1]!);
    const paths = quoted.filter((word) => /^[.\w-]+(\/[.\w*{},-]*)+$|^[\w.-]+\.(ts|md|json|yaml|mjs)$/.test(word));
    expect(paths.length).toBeGreaterThan(10);
    expect(paths.filter((path) => !path.includes("*") && !path.includes("<") && !existsSync(root + path))).toEqual([]);
    const scripts = JSON.parse(read("package.json")).scripts as Record<string, string>;
    const npm = quoted.flatMap((word) => word.match(/^npm (?:run )?([\w:]+)/)?.[1] ?? []);
    expect(npm.length).toBeGreaterThan(2);
    expect(npm.filter((name) => !(name in scripts))).toEqual([]);
    const verbs = quoted.flatMap((word) => word.match(/^(?:npx )?molt-runner ([a-z]+)/)?.[1] ?? []);
    const known = [...read("runner/src/cli.ts").matchAll(/command\(\s*["'`]([a-z]+)/g)].map((match) => match[1]);
    expect(verbs.filter((verb) => !known.includes(verb))).toEqual([]);
  });
});

describe("budgets (DESIGN: read it in one sitting)", () => {
  const total = (paths: string[]) => paths.reduce((lines, path) => lines + codeLines(path), 0);
  const sources = files.filter(isSource);

  it.each([
    ["the core", 8600, (path: string) => core.test(path)],
    ["the rest of runner/", 6000, (path: string) => path.startsWith("runner/") && !core.test(path)],
    ["native/", 4000, (path: string) => path.startsWith("native/")],
  ])("%s stays within %i lines of code", (_, most, belongs) => {
    const lines = total(sources.filter(belongs));
    expect(lines).toBeGreaterThan(100);
    expect(lines).toBeLessThanOrEqual(most);
  });

  it("the core fits in 110,000 tokens and everything in 280,000, at three characters a token", () => {
    const tokens = (paths: string[]) => paths.reduce((sum, path) => sum + read(path).length, 0) / 3;
    expect(tokens(sources.filter((path) => core.test(path)))).toBeLessThanOrEqual(110_000);
    expect(tokens(sources)).toBeLessThanOrEqual(280_000);
  });

  it("no source line is wider than 120", () => {
    const wide = sources.flatMap((path) =>
      read(path)
        .split("\n")
        .flatMap((line, index) => (line.length > 120 ? [`${path}:${index + 1}`] : [])),
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
});
