// Desktop VS Code, downloaded by @vscode/test-electron: where there is a screen and a network that has it.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { downloadAndUnzipVSCode, resolveCliArgsFromVSCodeExecutablePath } from "@vscode/test-electron";
import { _electron, type ElectronApplication } from "playwright-core";
import { cacheDirectory } from "../../native/setup/locate.mjs";
import { type Driver, type PrepareDriver, Workbench } from "./driver.ts";
import type { Installed } from "./install.ts";
import { NotRun, scale } from "./vscode-web/setup.ts";

export const prepareElectron: PrepareDriver = async () => {
  if (process.platform === "linux" && !process.env.DISPLAY) throw new NotRun("no screen (start it under xvfb-run)");
  try {
    const cachePath = join(cacheDirectory(), "vscode-desktop");
    const executablePath = await downloadAndUnzipVSCode({ cachePath, timeout: 30_000 * scale });
    return (installed, env) => new ElectronDriver(executablePath, installed, env);
  } catch (error) {
    throw new NotRun(`VS Code could not be downloaded: ${(error as Error).message}`);
  }
};

class ElectronDriver implements Driver {
  private readonly executablePath: string;
  private readonly installed: Installed;
  private readonly env: NodeJS.ProcessEnv;
  private app?: ElectronApplication;

  constructor(executablePath: string, installed: Installed, env: NodeJS.ProcessEnv) {
    this.executablePath = executablePath;
    this.installed = installed;
    this.env = env;
  }

  async start(): Promise<void> {
    const [cli, ...words] = resolveCliArgsFromVSCodeExecutablePath(this.executablePath, { reuseMachineInstall: true });
    const args = [...words, ...this.folders, "--install-extension", this.installed.vsix];
    const { status, stderr } = spawnSync(cli!, args, { env: this.env, encoding: "utf8" });
    if (status !== 0) throw new Error(`the .vsix was not installed:\n${stderr}`);
  }

  async open(path: string): Promise<Workbench> {
    const quiet = ["--no-sandbox", "--disable-updates", "--skip-welcome", "--skip-release-notes"];
    const args = [path, ...this.folders, ...quiet, "--disable-telemetry"];
    const env = this.env as Record<string, string>;
    const { executablePath } = this;
    this.app = await _electron.launch({ executablePath, args, env, timeout: 60_000 * scale });
    const workbench = new Workbench(await this.app.firstWindow());
    await workbench.ready();
    return workbench;
  }

  async leave(): Promise<void> {
    await this.app?.close();
    this.app = undefined;
  }

  async stop(): Promise<void> {
    await this.leave();
  }

  private get folders(): string[] {
    return [`--extensions-dir=${this.installed.extensions}`, `--user-data-dir=${this.installed.userData}`];
  }
}
