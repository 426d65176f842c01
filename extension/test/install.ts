// What users install, in a folder outside the repository: the packed runner with its native part, and the .vsix.
import { execFile } from "node:child_process";
import { readdirSync } from "node:fs";
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { promisify } from "node:util";
import { npmOnline } from "../../native/setup/packages.mjs";
import { scale } from "./vscode-web/setup.ts";

const execute = promisify(execFile);

/** Rejects with the command's own last lines. */
export async function run(command: string, args: string[], cwd: string, env = process.env): Promise<string> {
  try {
    const { stdout } = await execute(command, args, { cwd, env, timeout: 300_000 * scale, maxBuffer: 16 << 20 });
    return stdout;
  } catch (error) {
    const { stdout = "", stderr = "", message } = error as Error & { stdout?: string; stderr?: string };
    throw new Error(`${command} ${args.join(" ")}: ${(stderr + stdout).trim().slice(-2000) || message}`);
  }
}

export interface Installed {
  /** Holds `node_modules` with the packed runner, and below it the workspaces that the scenario opens. */
  home: string;
  vsix: string;
  extensions: string;
  userData: string;
  /** Lays files and settings out as they were at first; what was added since, runs and models, stays. */
  restore(): Promise<void>;
}

/** Packs both, installs the runner, and lays the workspaces out. The editor installs the .vsix itself. */
export async function install(repository: string, root: string): Promise<Installed> {
  const home = join(root, "home");
  const packages = join(root, "packages");
  await Promise.all([home, packages].map((folder) => mkdir(folder)));
  const vsix = join(packages, "molt-runner.vsix");
  await Promise.all([
    run("npm", ["run", "--silent", "package", "--workspace=extension", "--", "--out", vsix], repository),
    installRunner(repository, home, packages),
  ]);
  await layOut(repository, home);
  const [extensions, userData, kept] = ["extensions", "user-data", "kept"].map((name) => join(root, name));
  await cp(join(repository, "extension", "test", "probe"), join(extensions!, "probe"), { recursive: true });
  await writeSettings(userData!);
  const isOurs = (path: string) => !/node_modules|package(-lock)?\.json$/.test(relative(root, path));
  await cp(home, join(kept!, "home"), { recursive: true, filter: isOurs });
  await cp(userData!, join(kept!, "user-data"), { recursive: true });
  const restore = () => cp(kept!, root, { recursive: true });
  return { home, vsix, extensions: extensions!, userData: userData!, restore };
}

async function installRunner(repository: string, home: string, packages: string): Promise<void> {
  // Built by the set-up, which comes before.
  const words = ["pack", "--ignore-scripts", "--workspace=runner", "--workspace=native"];
  await run("npm", [...words, `--pack-destination=${packages}`], repository);
  await writeFile(join(home, "package.json"), '{ "private": true }\n');
  const tarballs = readdirSync(packages).filter((name) => name.endsWith(".tgz"));
  await npmOnline(["install", "--prefer-offline", ...tarballs.map((name) => join(packages, name))], home);
}

/** `my-agent` and `second` as `init` writes them, the latter with an older runner of its own; and `language`. */
async function layOut(repository: string, home: string): Promise<void> {
  const runner = join(home, "node_modules", "molt-runner");
  for (const name of ["my-agent", "second"]) {
    await run(process.execPath, [join(runner, "bin", "molt-runner.js"), "init", name], home);
  }
  await cp(join(repository, "extension", "test", "workspace"), home, { recursive: true });
  const older = join(home, "second", "node_modules", "molt-runner");
  await cp(runner, older, { recursive: true });
  const { version: _, molt, ...description } = JSON.parse(await readFile(join(older, "package.json"), "utf8"));
  const asOlder = { ...description, version: "0.0.9", molt: { ...molt, events: 0 } };
  await writeFile(join(older, "package.json"), JSON.stringify(asOlder));
  const folders = ["my-agent", "second"].map((path) => ({ path }));
  // MCP servers are among what the other windows go without.
  const settings = { "chat.disableAIFeatures": false };
  await writeFile(join(home, "both.code-workspace"), JSON.stringify({ folders, settings }));
}

async function writeSettings(folder: string): Promise<void> {
  await mkdir(join(folder, "User"), { recursive: true });
  const settings = {
    "chat.disableAIFeatures": true,
    "remote.autoForwardPorts": false,
    "terminal.integrated.gpuAcceleration": "off", // text in the page, not on a canvas
    "workbench.editor.enablePreview": false, // a preview's problems go when the next file takes its tab
    "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
  };
  await writeFile(join(folder, "User", "settings.json"), JSON.stringify(settings));
}
