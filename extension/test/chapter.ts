// What a chapter of the scenario is, and what several of them do: runs from outside of the window, waits, pictures.
import { spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Frame } from "playwright-core";
import { eventually, type Workbench } from "./driver.ts";
import { run } from "./install.ts";
import { markName } from "./processes.ts";

export interface Places {
  /** The folder where the packed runner is installed. */
  home: string;
  /** In the environment of every process that VS Code starts. */
  mark: string;
  /** Where pictures for the docs go, when they are wanted. */
  pictures?: string;
}

export interface Context extends Places {
  window: Workbench;
  /** What is open. */
  folder: string;
}

/** Begins with files as they were laid out and no run at work; of others before it, it takes runs and models alone. */
export interface Chapter {
  name: string;
  /** What is opened, below `home`. */
  folder: string;
  /** What goes on outside of the window meanwhile. */
  before?: (places: Places) => Promise<void>;
  steps: Record<string, (context: Context) => Promise<void>>;
}

/**
 * What keeps a run at work for as long as anybody looks at it. Without it one ends on its own: it fails once it has
 * learned all that there is, and the recipe's filter leaves ten batches in a row without a group. The warm-up of the
 * learning rate would be a part of so many steps.
 */
export const endless = { "run.steps": "100000", "algo.dynamic_filtering": "off", "actor.lr_warmup_ratio": "0" };

export const dashboard = "Molt Runner: Dashboard";

/** The newest run of a name. */
export function runOf(folder: string, name: string): string {
  const runs = join(folder, "runs");
  const found = existsSync(runs) ? readdirSync(runs).filter((run) => run.startsWith(`${name}-2`)) : [];
  return join(runs, found.sort().at(-1) ?? "none");
}

/** Runs of `my-agent` as from a terminal outside of VS Code. */
export class Terminal {
  private readonly folder: string;
  private readonly env: NodeJS.ProcessEnv;
  private readonly cli: string;

  constructor({ home, mark }: Places) {
    this.folder = join(home, "my-agent");
    this.env = { ...process.env, [markName]: mark };
    this.cli = join(home, "node_modules", "molt-runner", "bin", "molt-runner.js");
  }

  /** The model that the recipe begins with; trained unless an earlier chapter did. */
  async warmUp(): Promise<void> {
    if (!existsSync(join(this.folder, "warmup-model", "model.safetensors"))) await this.run("sft", "warmup.yaml");
  }

  /** To its end. */
  async run(...words: string[]): Promise<void> {
    await run(process.execPath, [this.cli, ...words], this.folder, this.env);
  }

  /** Until the chapter's end ends it. Resolves with its directory once its server is there. */
  async start(name: string): Promise<string> {
    const flags = Object.entries({ "run.name": name, ...endless }).flatMap(([key, value]) => [`--${key}`, value]);
    const words = ["run", "recipe.yaml", ...flags];
    const { folder: cwd, env } = this;
    const before = runOf(cwd, name);
    spawn(process.execPath, [this.cli, ...words], { cwd, env, stdio: "ignore" });
    const isThere = () => runOf(cwd, name) !== before && existsSync(join(runOf(cwd, name), "server.json"));
    await eventually(isThere, "the run's server", 60);
    return runOf(cwd, name);
  }
}

/** As where a proxy or a firewall stands between: the run's server is there, and nobody gets to it. */
export async function block(run: string): Promise<void> {
  const address = JSON.parse(await readFile(join(run, "server.json"), "utf8"));
  await writeFile(join(run, "server.json"), JSON.stringify({ ...address, url: "ws://127.0.0.1:9/" }));
}

/** The second column of the table behind a chart. */
export async function tableColumn(frame: Frame, chart: string): Promise<number[]> {
  const cells = frame.locator(`table:has(caption:has-text("${chart}")) td:first-of-type`);
  return (await cells.allTextContents()).map(Number);
}

/** Small enough for a repository, and large enough to read. */
export async function takePicture({ window, pictures }: Context, name: string): Promise<void> {
  const { page } = window;
  const size = page.viewportSize();
  if (!pictures || !size) return;
  if (await window.offers("View: Hide Panel")) await window.runCommand("View: Hide Panel");
  await page.mouse.move(0, 0);
  await page.setViewportSize({ width: 1080, height: 675 });
  await sleep(1000); // until all is laid out anew
  await page.screenshot({ path: join(pictures, `${name}.png`), animations: "disabled" });
  await page.setViewportSize(size);
}
