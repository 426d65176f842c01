// The editor tier: a real VS Code (code-server) in a real browser (Chromium), our extension, a real terminal.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { steps } from "./steps.mjs";
import { serveVsCode } from "./vscode-web/serve.mjs";
import { findChromium, NotRun, scale, setUpVsCode } from "./vscode-web/setup.mjs";

const repository = fileURLToPath(new URL("../..", import.meta.url));
const runner = join(repository, "runner", "dist", "cli.js");
const browserArguments = [
  ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
  ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
];
const results = [];
const started = Date.now();

/** What has to be undone, last first; once, whether the steps end or are interrupted. */
const undo = [];
let cleaning;
let opening = Promise.resolve();
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    await cleanUp();
    process.exit(130);
  });
}

try {
  const executablePath = await findChromium();
  const dir = await setUpVsCode();
  build();
  opening = open(dir, executablePath);
  await runSteps(await opening);
} catch (error) {
  if (error instanceof NotRun) record("skipped", "editor", `not run: ${error.message}`);
  else record("failed", "start", error.stack);
}
await cleanUp();
record("skipped", "desktop VS Code", "not run: comes with packaging; the steps above drive the same workbench");
report();

/** The extension always, so that no older build is tested; the runner, which set-up builds, only when absent. */
function build() {
  const scripts = ["extension/build.mjs", ...(existsSync(runner) ? [] : ["runner/build.mjs"])];
  for (const script of scripts) {
    const { status, stderr } = spawnSync(process.execPath, [script], { cwd: repository, encoding: "utf8" });
    if (status !== 0) throw new Error(`${script} failed:\n${stderr}`);
  }
}

/** Starts the server on a fresh copy of the workspace (auto-save writes to it) and opens it in a browser. */
async function open(dir, executablePath) {
  const root = await mkdtemp(join(tmpdir(), "molt-editor-"));
  undo.push(() => rm(root, { recursive: true, force: true, maxRetries: 5 }));
  const [workspace, extensions, userData] = ["workspace", "extensions", "user-data"].map((name) => join(root, name));
  const extension = join(repository, "extension");
  await cp(join(extension, "test", "workspace"), workspace, { recursive: true });
  await mkdir(join(workspace, "node_modules"));
  await symlink(join(repository, "runner"), join(workspace, "node_modules", "molt-runner"));
  for (const path of ["package.json", "dist"]) {
    await cp(join(extension, path), join(extensions, "molt-runner.molt-runner-vscode", path), { recursive: true });
  }
  await mkdir(join(userData, "User"), { recursive: true });
  await writeFile(join(userData, "User", "settings.json"), JSON.stringify(settings()));

  const env = { ...process.env, MOLT_EDITOR_TEST: root };
  undo.push(() => endSurvivors(root));
  const server = await serveVsCode({ dir, extensions, userData, workspace, env });
  undo.push(server.stop);
  // Its own answer to a signal would end this process before the rest is cleaned up.
  const signals = { handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false };
  const options = { executablePath, args: browserArguments, env, timeout: 60_000 * scale };
  const browser = await chromium.launch({ ...options, ...signals });
  undo.push(() => browser.close());
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  page.setDefaultTimeout(20_000 * scale);
  await page.goto(server.url);
  return { page, workspace };
}

function settings() {
  return {
    "chat.disableAIFeatures": true,
    "terminal.integrated.gpuAcceleration": "off", // text in the page, not on a canvas
    "workbench.editor.enablePreview": false, // a preview's problems go when the next file takes its tab
    "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
  };
}

async function runSteps(context) {
  let failed;
  for (const [name, step] of Object.entries(steps)) {
    if (failed) {
      record("skipped", name, `not run: after the failed step "${failed}"`);
      continue;
    }
    const start = Date.now();
    try {
      await step(context);
      record("passed", name, `${((Date.now() - start) / 1000).toFixed(1)} s`);
    } catch (error) {
      failed = name;
      const picture = join(tmpdir(), "molt-editor-failure.png");
      await context.page.screenshot({ path: picture }).catch(() => {});
      record("failed", name, `${error.message}\n  picture: ${picture}`);
    }
  }
}

function cleanUp() {
  cleaning ??= (async () => {
    await opening.catch(() => {}); // what is still being started would be missed
    while (undo.length > 0) await undo.pop()();
  })();
  return cleaning;
}

/** Whatever VS Code started carries our mark in its environment. Given a moment to leave, it must be gone. */
async function endSurvivors(mark) {
  const deadline = Date.now() + 10_000 * scale;
  while (marked(mark).length > 0 && Date.now() < deadline) await sleep(100);
  const left = marked(mark);
  for (const { pid } of left) spawnSync("kill", ["-KILL", String(pid)]);
  const names = left.map(({ pid, command }) => `${pid} ${command}`).join("\n  ");
  record(left.length === 0 ? "passed" : "failed", "no process is left", names);
}

function marked(mark) {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        if (!readFileSync(`/proc/${name}/environ`, "utf8").includes(`MOLT_EDITOR_TEST=${mark}`)) return [];
        return [{ pid: Number(name), command: readFileSync(`/proc/${name}/cmdline`, "utf8").replaceAll("\0", " ") }];
      } catch {
        return []; // ended meanwhile, or not ours to read
      }
    });
}

function record(outcome, name, detail) {
  results.push(outcome);
  console.log(`${outcome.padEnd(8)} ${name.padEnd(52)} ${detail}`);
}

function report() {
  const count = (outcome) => results.filter((result) => result === outcome).length;
  console.log(`editor tier: ${((Date.now() - started) / 1000).toFixed(0)} s`);
  console.log(`${count("passed")} passed, ${count("failed")} failed, ${count("skipped")} skipped`);
  process.exitCode = count("failed") > 0 ? 1 : 0;
}
