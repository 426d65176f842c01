// The editor tier: the packed runner and the packaged extension, installed as users install them, in a real VS Code.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import type { Chapter, Places } from "./chapter.ts";
import { prepareChromium } from "./chromium.ts";
import type { Driver, PrepareDriver, Workbench } from "./driver.ts";
import { prepareElectron } from "./electron.ts";
import { install } from "./install.ts";
import { endMarked, endSurvivors, markName } from "./processes.ts";
import { chapters } from "./scenario.ts";
import { NotRun } from "./vscode-web/setup.ts";

// This module is bundled into `dist/`.
const repository = fileURLToPath(new URL("../../..", import.meta.url));
const options = { only: { type: "string" }, screenshots: { type: "boolean", default: false } } as const;

type Outcome = "passed" | "failed" | "skipped";
const results: Outcome[] = [];
/** What has to be undone, last first; once, whether the steps end or are interrupted. */
const undo: (() => Promise<unknown>)[] = [];
let opening: Promise<unknown> = Promise.resolve();

/** Prints a line a step and ends with "N passed, N failed, N skipped"; the exit code says whether one failed. */
export async function runTier(args: string[]): Promise<void> {
  const { only, screenshots } = parseArgs({ args, options }).values;
  const interrupt = () => cleanUp().then(() => process.exit(130));
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, interrupt);
  const chosen = chapters.filter(({ name }) => only === undefined || name.includes(only));
  const pictures = screenshots ? join(repository, "docs", "editor") : undefined;
  await runDriver("code-server in Chromium", prepareChromium, chosen, pictures);
  await runDriver("desktop VS Code", prepareElectron, chosen);
  const count = (outcome: Outcome) => results.filter((result) => result === outcome).length;
  console.log(`${count("passed")} passed, ${count("failed")} failed, ${count("skipped")} skipped`);
  process.exitCode = count("failed") > 0 ? 1 : 0;
}

async function runDriver(name: string, prepare: PrepareDriver, chosen: Chapter[], pictures?: string): Promise<void> {
  const started = Date.now();
  const seconds = () => ((Date.now() - started) / 1000).toFixed(0);
  try {
    const create = await prepare();
    console.log(`${name}: ready after ${seconds()} s`);
    opening = start(create);
    const { driver, home, mark, restore } = (await opening) as Awaited<ReturnType<typeof start>>;
    console.log(`${name}: packed, installed and started after ${seconds()} s`);
    const run = async (chapter: Chapter) => {
      await runChapter(chapter, driver, { home, mark, pictures });
      // Whether it came to its end or broke off, the next one finds nothing at work and the files as they were.
      await driver.leave();
      await endMarked(mark, "molt-runner.js");
      await restore();
    };
    for (const chapter of chosen) {
      const before = results.length;
      await run(chapter);
      if (!results.slice(before).includes("failed")) continue;
      // A busy browser loses a key now and then. Both tries are printed, the second is what counts.
      console.log("-- once more");
      results.length = before;
      await run(chapter);
    }
  } catch (error) {
    if (error instanceof NotRun) record("skipped", name, `not run: ${error.message}`);
    else record("failed", `${name}: start`, (error as Error).stack ?? String(error));
  }
  await cleanUp();
  console.log(`${name}: ${seconds()} s`);
}

async function start(create: Awaited<ReturnType<PrepareDriver>>) {
  const root = await mkdtemp(join(tmpdir(), "molt-editor-"));
  undo.push(() => rm(root, { recursive: true, force: true, maxRetries: 5 }));
  undo.push(async () => {
    const left = await endSurvivors(root);
    const names = left.map(({ pid, command }) => `${pid} ${command}`).join("\n  ");
    record(left.length === 0 ? "passed" : "failed", "no process is left", names);
  });
  const installed = await install(repository, root);
  const driver = create(installed, { ...process.env, [markName]: root });
  undo.push(() => driver.stop());
  await driver.start();
  return { driver, ...installed, mark: root };
}

/** After a step that failed, the chapter's others would only fail in its wake. */
async function runChapter({ name, folder, before, steps }: Chapter, driver: Driver, places: Places): Promise<void> {
  console.log(`-- ${name}`);
  let window: Workbench | undefined;
  let failed: string | undefined;
  for (const [step, act] of Object.entries(steps)) {
    if (failed) {
      record("skipped", step, `not run: after the failed step "${failed}"`);
      continue;
    }
    const started = Date.now();
    try {
      if (!window) await before?.(places);
      window ??= await driver.open(join(places.home, folder));
      await act({ ...places, window, folder: join(places.home, folder) });
      record("passed", step, `${((Date.now() - started) / 1000).toFixed(1)} s`);
    } catch (error) {
      failed = step;
      const picture = join(tmpdir(), `molt-editor-failure-${results.length}.png`);
      await window?.page.screenshot({ path: picture }).catch(() => {});
      record("failed", step, `${(error as Error).message}\n  picture: ${picture}`);
    }
  }
}

let cleaning: Promise<void> | undefined;
function cleanUp(): Promise<void> {
  cleaning ??= (async () => {
    await opening.catch(() => {}); // what is still being started would be missed
    while (undo.length > 0) await undo.pop()!();
    cleaning = undefined;
  })();
  return cleaning;
}

function record(outcome: Outcome, name: string, detail: string): void {
  results.push(outcome);
  console.log(`${outcome.padEnd(8)} ${name.padEnd(64)} ${detail}`);
}
