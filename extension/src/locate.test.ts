import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { installedRunner, locateRunner, readVersions, splitWords } from "./locate.ts";

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "molt-locate-"));
});
afterEach(() => rmSync(root, { recursive: true }));

function write(path: string, content: object | string = ""): string {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, typeof content === "string" ? content : JSON.stringify(content));
  return file;
}

const install = (folder: string, version = "0.1.0") =>
  dirname(write(join(folder, "node_modules", "molt-runner", "package.json"), { name: "molt-runner", version }));

describe("which runner", () => {
  test("the nearest to the file, then one above; each root its own", () => {
    const [above, second] = [install("."), install("second", "0.2.0")];
    const file = (folder: string) => join(root, folder, "recipes", "a.yaml");
    expect(installedRunner(file("first"))).toBe(above);
    expect(locateRunner(file("second"), join(root, "second"), "")).toEqual({
      command: ["node", join(second, "bin", "molt-runner.js")],
      folder: second,
    });
  });

  test("none is null", () => {
    expect(locateRunner(join(root, "a.yaml"), root, "")).toBeNull();
    expect(locateRunner(join(root, "a.yaml"), root, "  ")).toBeNull();
  });

  test("the setting goes before what is installed: a script from the root, or words of a command", () => {
    const folder = install(".");
    const other = dirname(write("other runner/package.json", { name: "molt-runner", version: "1.0.0" }));
    const script = write("other runner/bin/molt-runner.js");
    const located = (setting: string) => locateRunner(join(root, "a.yaml"), root, setting);
    expect(located("other runner/bin/molt-runner.js")).toEqual({ command: ["node", script], folder: other });
    expect(located(`node "${script}"`)).toEqual({ command: ["node", script], folder: other });
    expect(located("npx molt-runner")).toEqual({ command: ["npx", "molt-runner"], folder: null });
    expect(located("")?.folder).toBe(folder);
  });
});

test("words in quotes hold spaces", () => {
  expect(splitWords(`--run.name "a b" --x 'c d' e`)).toEqual(["--run.name", "a b", "--x", "c d", "e"]);
  expect(splitWords("")).toEqual([]);
});

describe("what an installed runner says of itself", () => {
  const schema = {
    properties: { extends: { type: "string" }, run: { properties: { name: {}, seed: {} } }, top: {} },
  };

  test("its version, its formats, the keys of its schema", () => {
    const content = { name: "molt-runner", version: "0.3.0", molt: { recipe: 1, events: 2, live: 1 } };
    const folder = dirname(write("package.json", content));
    write("dist/recipe-schema.json", schema);
    expect(readVersions(folder)).toEqual({
      version: "0.3.0",
      formats: { recipe: 1, events: 2, live: 1 },
      keys: new Set(["run.name", "run.seed", "top"]),
    });
  });

  test("one from before it said so, one without a schema, another package, a file that is torn", () => {
    expect(readVersions(install("."))).toEqual({ version: "0.1.0", formats: {}, keys: null });
    expect(readVersions(dirname(write("other/package.json", { name: "other", version: "1.0.0" })))).toBeNull();
    expect(readVersions(dirname(write("torn/package.json", '{ "name": "molt-')))).toBeNull();
  });
});
