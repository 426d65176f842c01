/** What docs/estimators.md says of an estimator of one's own, done: its commands and files, in a folder elsewhere. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { read, root } from "./tree.ts";

let home: string;
let agent: string;
const page = read("docs/estimators.md").split("## One of your own")[1]!;

/** The code of the page's blocks of one language, in order. */
const blocks = (language: string) =>
  [...page.matchAll(/^```(\w*)\n(.*?)^```$/gms)].filter((block) => block[1] === language).map((block) => block[2]!);

function node(words: string[], cwd: string) {
  const { status, stdout, stderr } = spawnSync(process.execPath, words, { cwd, encoding: "utf8", timeout: 60_000 });
  return { code: status, out: stdout + stderr };
}
const molt = (...words: string[]) => node([join(root, "runner/bin/molt-runner.js"), ...words], agent);

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "molt-estimators-page-"));
  agent = join(home, "my-agent");
  symlinkSync(join(root, "node_modules"), join(home, "node_modules"));
  expect(node([join(root, "runner/bin/molt-runner.js"), "init", "my-agent"], home)).toMatchObject({ code: 0 });
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

it("the page's estimator: its test fails on the scaffold, passes on the page's file, and the recipe is right", () => {
  const [init, use] = blocks("sh").map((code) => code.trim().split("\n"));
  expect(init).toEqual(["npx molt-runner init estimator best_of"]);
  expect(use!.slice(0, 2)).toEqual(["node --test", "npx molt-runner check recipe.yaml"]);
  const before = readFileSync(join(agent, "recipe.yaml"), "utf8").split("\n");
  expect(molt(...init![0]!.split(" ").slice(2))).toMatchObject({ code: 0 });
  const after = readFileSync(join(agent, "recipe.yaml"), "utf8").split("\n");
  expect(after.filter((line, index) => line !== before[index])).toEqual(["  advantage: { estimator: ./best-of.ts }"]);
  expect(after.length).toBe(before.length);

  const [test, code] = [blocks("js")[0]!, blocks("ts")[0]!];
  writeFileSync(join(agent, "best-of.test.mjs"), test);
  const failed = node(["--test"], agent);
  expect(failed.code).toBe(1);
  expect(failed.out).toMatch(/not ok|✖/);
  expect(failed.out).toContain("two equal bests of four share");
  writeFileSync(join(agent, "best-of.ts"), code);
  expect(node(["--test"], agent)).toMatchObject({ code: 0 });
  expect(molt("check", "recipe.yaml")).toMatchObject({ code: 0 });

  writeFileSync(join(agent, "best-of.ts"), code.replace("default", "defalt"));
  const broken = molt("check", "recipe.yaml");
  expect(broken.code).toBe(2);
  expect(broken.out.trim()).toBe(blocks("")[0]!.trim());
});
