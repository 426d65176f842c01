import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, expect, test } from "vitest";

const extension = fileURLToPath(new URL("..", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "molt-vsix-"));
afterAll(() => rmSync(folder, { recursive: true }));
const run = promisify(execFile);

test("the package holds the bundles, their notices and what the manifest names, in under 2 MB", async () => {
  const vsix = join(folder, "molt.vsix");
  const options = { cwd: extension, shell: process.platform === "win32" };
  const { stdout } = await run("npm", ["run", "--silent", "package", "--", "--out", vsix], options);
  expect(stdout).toContain("Packaged");
  expect(statSync(vsix).size).toBeLessThan(2_000_000);

  const { stdout: listed } = await run("npx", ["vsce", "ls", "--no-dependencies"], options);
  const files = listed.trim().split("\n");
  const bundles = [
    "extension.cjs",
    "language-client.cjs",
    "mcp-client.cjs",
    "code-record.cjs",
    "server.cjs",
    "page.css",
    "dashboard-page.js",
    "THIRD-PARTY-NOTICES.txt",
  ];
  const named = ["package.json", "README.md", "LICENSE", "media/icon.png", "media/molt.svg"];
  expect(files).toEqual(expect.arrayContaining([...bundles.map((name) => `dist/${name}`), ...named]));
  // Neither sources, tests, maps nor packages.
  expect(files.filter((path) => /^(src|test|bench|node_modules)\/|\.(map|ts|mjs)$/.test(path))).toEqual([]);
});
