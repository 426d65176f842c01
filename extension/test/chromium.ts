// VS Code's workbench served by code-server, in Chromium without a window.
import { type Browser, chromium, type Page } from "playwright-core";
import { type Driver, type PrepareDriver, Workbench } from "./driver.ts";
import { type Installed, run } from "./install.ts";
import { codeServer, type Served, serveVsCode } from "./vscode-web/serve.ts";
import { findChromium, scale, setUpVsCode } from "./vscode-web/setup.ts";

const browserArguments = [
  ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
  ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
];

export const prepareChromium: PrepareDriver = async () => {
  const executablePath = await findChromium();
  const dir = await setUpVsCode();
  return (installed, env) => new ChromiumDriver(executablePath, dir, installed, env);
};

class ChromiumDriver implements Driver {
  private readonly executablePath: string;
  private readonly dir: string;
  private readonly installed: Installed;
  private readonly env: NodeJS.ProcessEnv;
  private server?: Served;
  private browser?: Browser;
  private page?: Page;

  constructor(executablePath: string, dir: string, installed: Installed, env: NodeJS.ProcessEnv) {
    this.executablePath = executablePath;
    this.dir = dir;
    this.installed = installed;
    this.env = env;
  }

  async start(): Promise<void> {
    const { vsix, ...folders } = this.installed;
    const options = { dir: this.dir, ...folders };
    const [command, ...words] = codeServer(options);
    await run(command, [...words, "--install-extension", vsix], folders.home, this.env);
    this.server = await serveVsCode({ ...options, env: this.env });
    // Its own answer to a signal would end this process before the rest is cleaned up.
    const signals = { handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false };
    const launch = {
      executablePath: this.executablePath,
      args: browserArguments,
      env: this.env as Record<string, string>,
    };
    this.browser = await chromium.launch({ ...launch, timeout: 60_000 * scale, ...signals });
    this.page = await this.browser.newPage({ viewport: { width: 1400, height: 900 } });
    this.page.on("dialog", (dialog) => dialog.accept()); // "leave this page?"
  }

  async open(path: string): Promise<Workbench> {
    const key = path.endsWith(".code-workspace") ? "workspace" : "folder";
    const workbench = new Workbench(this.page!);
    // Now and then code-server shows a workspace file without its folders until it is loaded again.
    for (let attempt = 0; attempt < 3; attempt++) {
      await this.page!.goto(`${this.server!.url}/?${key}=${encodeURIComponent(path)}`);
      await workbench.ready();
      if (await workbench.hasFolders()) return workbench;
    }
    throw new Error(`${path} was opened three times, and its folders never came`);
  }

  async leave(): Promise<void> {
    await this.page!.goto("about:blank");
  }

  async stop(): Promise<void> {
    await this.browser?.close();
    await this.server?.stop();
  }
}
