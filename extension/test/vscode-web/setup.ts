// Installs what the editor tests drive: the npm package `code-server` (VS Code's real workbench and extension host) and
// the Node that it needs, into the tests' cache. Once, minutes, about 750 MB; pinned, so that a run repeats the last.
import { spawn } from "node:child_process";
import { createWriteStream, existsSync } from "node:fs";
import { copyFile, mkdir, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";

const codeServer = "4.139.1";
const node = "24.21.0";
const attempts = 3;

/** A reason why this tier cannot run here: reported as "not run", never as passed. */
export class NotRun extends Error {}

export const scale = Number(process.env.MOLT_DEADLINE_SCALE ?? 1);

/** The folder with `node24` and `node_modules/code-server`; installs it when absent or of other versions. */
export async function setUpVsCode(): Promise<string> {
  if (process.platform !== "linux") throw new NotRun("the editor tests need Linux");
  const cache = process.env.MOLT_CACHE ?? join(homedir(), ".cache", "molt-runner");
  const dir = join(cache, "vscode-web");
  const versions = `${codeServer} ${node}`;
  if ((await readFile(join(dir, ".ready"), "utf8").catch(() => "")) === versions) return dir;

  for (const tool of ["make", "g++", "python3"]) {
    if (!onPath(tool)) throw new NotRun(`${tool} is missing (apt-get install build-essential python3)`);
  }
  // Made aside and renamed when complete: an interrupted set-up leaves nothing that looks finished.
  const partial = `${dir}.partial`;
  await rm(partial, { recursive: true, force: true });
  await mkdir(partial, { recursive: true });
  const log = join(cache, "vscode-web.log");
  await install(partial, createStepRunner(log));
  await writeFile(join(partial, ".ready"), versions);
  await rm(dir, { recursive: true, force: true });
  await rename(partial, dir);
  return dir;
}

/** Debian's Chromium. Root may install it; anyone else is told how. */
export async function findChromium(): Promise<string> {
  const find = () => ["chromium", "chromium-browser"].map(onPath).find((path) => path !== undefined);
  const there = find();
  if (there) return there;
  if (process.getuid?.() === 0 && onPath("apt-get")) {
    const run = createStepRunner(join(process.env.TMPDIR ?? "/tmp", `molt-apt-${process.pid}.log`));
    const env = { DEBIAN_FRONTEND: "noninteractive" };
    await run("apt-get update", "apt-get", ["update", "-qq"], { env });
    // Recommended packages would bring a printer panel and system upgrades along.
    const packages = ["-o", "DPkg::Lock::Timeout=300", "chromium", "fonts-dejavu-core"]; // another may be installing
    await run("apt-get install chromium", "apt-get", ["install", "-y", "-qq", "--no-install-recommends", ...packages], {
      env,
    });
  }
  const installed = find();
  if (!installed) throw new NotRun("chromium is missing (apt-get install chromium)");
  return installed;
}

async function install(dir: string, run: StepRunner): Promise<void> {
  const npmInstall = ["install", "--no-audit", "--no-fund", "--ignore-scripts"];
  await writeFile(join(dir, "package.json"), JSON.stringify({ name: "vscode-web", private: true }));

  // The npm package `node` links its binary in an install script; the package with the binary itself needs none.
  const nodePackage = `node-linux-${process.arch}`;
  const packages = [`${nodePackage}@${node}`, `code-server@${codeServer}`];
  await run(`code-server ${codeServer} and Node ${node}`, "npm", [...npmInstall, ...packages], { cwd: dir });
  const node24 = join(dir, "node24");
  await copyFile(join(dir, "node_modules", nodePackage, "bin", "node"), node24);

  // Its own post-install script downloads; installing from the two package.json files it carries does the same job.
  const vscode = join(dir, "node_modules", "code-server", "lib", "vscode");
  for (const [what, cwd] of [
    ["the workbench's packages", vscode],
    ["the built-in extensions' packages", join(vscode, "extensions")],
  ] as const) {
    await rm(join(cwd, "npm-shrinkwrap.json"), { force: true });
    await run(what, "npm", [...npmInstall, "--omit=dev"], { cwd });
  }
  // Only these two must be compiled: node-pty and @parcel/watcher carry a binary, and the others are not missed.
  const compiled = ["@vscode/spdlog", "@vscode/native-watchdog"];
  await run(`compiling ${compiled.join(", ")}`, "npm", ["rebuild", ...compiled], { cwd: vscode, env: { JOBS: "2" } });
  await symlink("node_modules", join(vscode, "node_modules.asar")).catch((error) => {
    if (error.code !== "EEXIST") throw error;
  });
  // Loaded under the Node that will run them, so that a bad build fails here and not in a test.
  const modules = JSON.stringify(["node-pty", "@parcel/watcher", ...compiled]);
  await run("loading the native modules", node24, ["-e", `for (const m of ${modules}) require(m)`], { cwd: vscode });
  await rm(join(dir, "node_modules", nodePackage), { recursive: true });
}

interface StepOptions {
  cwd?: string;
  env?: Record<string, string>;
}
type StepRunner = (what: string, command: string, args: string[], options?: StepOptions) => Promise<void>;

/** Runs one step, says how long it took, tries again (networks fail), and on failure shows the end of the log. */
function createStepRunner(log: string): StepRunner {
  return async (what, command, args, options = {}) => {
    for (let attempt = 1; ; attempt++) {
      const start = Date.now();
      process.stdout.write(`  set-up: ${what} …`);
      const code = await runOnce(log, command, args, options);
      console.log(` ${code === 0 ? "done" : "failed"}, ${((Date.now() - start) / 1000).toFixed(0)} s`);
      if (code === 0) return;
      if (attempt < attempts) continue;
      const lines = (await readFile(log, "utf8")).trimEnd().split("\n").slice(-15);
      throw new NotRun(`set-up failed at "${what}"; last lines of ${log}:\n${lines.join("\n")}`);
    }
  };
}

function runOnce(log: string, command: string, args: string[], { cwd, env }: StepOptions): Promise<number | null> {
  return new Promise((resolve) => {
    const out = createWriteStream(log, { flags: "a" });
    const child = spawn(command, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      timeout: 600_000 * scale,
    });
    const end = () => child.kill();
    process.once("exit", end);
    child.stdout.pipe(out, { end: false });
    child.stderr.pipe(out, { end: false });
    child.once("error", (error) => out.write(`${error.message}\n`));
    child.once("close", (code) => {
      process.off("exit", end);
      out.end(() => resolve(code));
    });
  });
}

function onPath(command: string): string | undefined {
  const folders = (process.env.PATH ?? "").split(":");
  return folders.map((folder) => join(folder, command)).find((path) => existsSync(path));
}
