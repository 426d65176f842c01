import { existsSync, readFileSync } from "node:fs";
import { describe, expect, test, vi } from "vitest";
import { table } from "./commands.ts";

vi.mock("vscode", () => ({}));

const read = (path: string) => readFileSync(new URL(`../${path}`, import.meta.url), "utf8");
const { contributes, capabilities, engines, icon, ...manifest } = JSON.parse(read("package.json"));
const declared = contributes.commands as { command: string; category: string; enablement?: string }[];
const names = declared.map(({ command }) => command);

describe("commands", () => {
  test("every declared one has its function, and every function that people call is declared", () => {
    // The language server's lenses and our views call these, with arguments that nobody types.
    const internal = ["molt.showReferences", "molt.openSource"];
    const called = Object.keys(table).filter((name) => !internal.includes(name));
    expect([...names].sort()).toEqual(called.sort());
    expect(declared.filter(({ category }) => category !== "Molt Runner")).toEqual([]);
  });

  test("menus, welcomes and walkthroughs name commands that are there", () => {
    const text = JSON.stringify([contributes.menus, contributes.viewsWelcome, contributes.walkthroughs]);
    const used = [...text.matchAll(/(?:"command":"|command:|onCommand:)(molt\.\w+)/g)].map((match) => match[1]!);
    expect(used.length).toBeGreaterThan(10);
    expect(used.filter((name) => !names.includes(name))).toEqual([]);
  });

  test.each(["run", "stop", "resume", "fork", "evaluate", "debugAgent", "debugRollout", "newAgent"])(
    "molt.%s, which starts processes, is off in an untrusted workspace",
    (name) => {
      const enablement = declared.find(({ command }) => command === `molt.${name}`)?.enablement;
      expect(enablement).toContain("isWorkspaceTrusted");
    },
  );
});

test("what a workspace names to be started counts in a trusted one alone", () => {
  expect(capabilities.untrustedWorkspaces.supported).toBe("limited");
  expect(capabilities.untrustedWorkspaces.restrictedConfigurations).toContain("molt.runnerPath");
  expect(contributes.configuration.properties["molt.runnerPath"].scope).toBe("resource");
});

test("it runs where the workspace is, and starts with nothing but what has to do with recipes", () => {
  expect(manifest.extensionKind).toEqual(["workspace"]);
  expect(manifest.activationEvents).not.toContain("*");
  expect(manifest.activationEvents).not.toContain("onStartupFinished");
});

test("pictures and pages that it names are there; the licence is the repository's", () => {
  const media = [...JSON.stringify(contributes).matchAll(/"(media\/[^"]+)"/g)].map((match) => match[1]!);
  expect(media.length).toBeGreaterThan(4);
  expect([icon, ...media].filter((path) => !existsSync(new URL(`../${path}`, import.meta.url)))).toEqual([]);
  expect(read("LICENSE")).toBe(read("../LICENSE"));
});

test("the types that it is checked against are those of the oldest VS Code that it allows", () => {
  expect(engines.vscode).toBe(`^${manifest.devDependencies["@types/vscode"]}`);
});

describe("the problem matcher", () => {
  const [{ regexp, ...groups }] = contributes.problemMatchers[0].pattern;
  const match = (line: string) => new RegExp(regexp).exec(line);

  test("takes what `check` and a run print: severity, file, line, column, message", () => {
    const found = match("error recipes/sort.yaml:6:3 rollout.batch_sise is no key: did you mean 'batch_size'?")!;
    const { severity, file, line, column, message } = groups;
    expect([severity, file, line, column].map((group) => found[group])).toEqual([
      "error",
      "recipes/sort.yaml",
      "6",
      "3",
    ]);
    expect(found[message]).toMatch(/^rollout\.batch_sise is no key/);
    expect(match("agent.ts:12:7 Expected ';'")![file]).toBe("agent.ts");
  });

  test.each(["  fix: rename it", "step 4/120  reward 0.008", "version 3 on 1 engine in 0.10 s", "try next:"])(
    "leaves other lines: %s",
    (line) => expect(match(line)).toBeNull(),
  );
});
