// What a user does and sees, in order, in any VS Code. A step waits for what it expects, up to a deadline, else throws.
import { spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Frame } from "playwright-core";
import { checkAccessible } from "./accessibility.ts";
import { eventually, type Workbench } from "./driver.ts";
import { inspectGroup, inspectHarm, inspectRollout, testRewards } from "./inspector.ts";
import { marked, markName } from "./processes.ts";
import { scale } from "./vscode-web/setup.ts";

export interface Places {
  /** The folder where the packed runner is installed. */
  home: string;
  /** In the environment of every process that VS Code starts. */
  mark: string;
  /** Where pictures for the docs go, when they are wanted. */
  pictures?: string;
}

interface Context extends Places {
  window: Workbench;
  /** What is open. */
  folder: string;
}

export interface Chapter {
  name: string;
  /** What is opened, below `home`. */
  folder: string;
  /** What goes on outside of the window meanwhile; returns what ends it. */
  before?: (places: Places) => Promise<() => void>;
  steps: Record<string, (context: Context) => Promise<void>>;
}

const misspelt = "batch_sise";
const right = "batch_size";

const status = '[id="molt-runner.molt-runner-vscode.status"]';

const language: Chapter = {
  name: "a folder, first without trust",
  folder: "language",
  steps: {
    "its recipes are checked": async ({ window }) => {
      await window.openFile("sort.yaml");
      await window.page.locator(`${status}:has-text("Molt: ready")`).waitFor();
      await window.page.locator(".squiggly-error").first().waitFor();
    },

    "nothing in it can be run": async ({ window, mark }) => {
      if (await window.offers("Molt Runner: Run Recipe")) throw new Error("Run Recipe is offered");
      await window.page.locator('.codelens-decoration a:has-text("check")').click();
      await window.notification("trust").waitFor();
      await window.runCommand("Molt Runner: Doctor");
      await window.tab("doctor.txt").waitFor();
      await eventually(async () => (await window.text()).includes("not asked: the workspace is not trusted"), "doctor");
      const started = marked(mark, "molt-runner.js");
      if (started.length > 0) throw new Error(`started: ${started[0]!.command}`);
    },

    "trusted, it goes on as it is": async ({ window }) => {
      await window.trust();
      await window.openFile("sort.yaml");
      await window.page.locator(`${status}:has-text("Molt: ready")`).waitFor();
    },

    "a misspelt key is underlined": async ({ window: { page } }) => {
      await page.locator(".squiggly-error").first().waitFor();
    },

    "Problems suggests the right key": async ({ window }) => {
      await window.showProblems();
      await window.problem(`did you mean '${right}'`).waitFor();
    },

    "Run Recipe shows the runner's answer in a terminal": async ({ window }) => {
      await window.runCommand("Molt Runner: Run Recipe");
      await window.terminalShows("recipes/sort.yaml:6:3");
      await window.terminalShows(`did you mean '${right}'`);
    },

    "the quick fix repairs it, on disk too": async ({ window, folder }) => {
      await window.showProblems();
      await window.problem(misspelt).dblclick(); // moves to the place and gives the editor the focus
      await window.cursorAt(6);
      await window.quickFix(right);
      await window.problem(misspelt).waitFor({ state: "detached" });
      await eventually(async () => {
        const text = await readFile(join(folder, "recipes", "sort.yaml"), "utf8");
        return text.includes(`  ${right}: 4`);
      }, "the repaired key on disk");
    },

    "completion offers the key, hover explains it, and a hint says what its value comes to": async ({ window }) => {
      await window.page.locator('.view-line:has-text("32")').waitFor(); // 4 prompts x 8 samples
      await window.runCommand("Trigger Suggest");
      await window.page.locator(`.suggest-widget.visible .monaco-list-row:has-text("${right}")`).waitFor();
      await window.page.keyboard.press("Escape");
      await window.runCommand("Show or Focus Hover");
      await window.page.locator(`.monaco-hover:visible:has-text("rollout.${right}")`).waitFor();
      await window.page.keyboard.press("Escape");
    },

    "a lens above the recipe checks it in a terminal": async ({ window }) => {
      await window.page.locator('.codelens-decoration a:has-text("check")').click();
      await window.terminalShows("train.agent_path recipes/agent.ts: this file");
      await window.showProblems();
    },

    "YAML that is no recipe is left alone": async ({ window }) => {
      await window.openFile("services.yaml");
      await window.page.locator(".view-line:has-text('imagee')").waitFor();
      // The server answers in order: once a recipe opened later has its problem, this document was looked at.
      await window.openFile("second.yaml");
      await window.problem("stepz").waitFor();
      const flagged = await window.problem("services.yaml").count();
      if (flagged > 0) throw new Error("services.yaml, which is no recipe, has problems");
    },

    "Run Recipe takes the verb that the recipe is for": async ({ window }) => {
      await window.openFile("imitate.yaml");
      await window.runCommand("Molt Runner: Run Recipe");
      // `run` would ask for an agent before it looks for the model.
      await window.terminalShows("absent-model: this model folder does not");
    },
  },
};

const dashboard = "Molt Runner: Dashboard";

const training: Chapter = {
  name: "from a recipe to a trained model",
  folder: "my-agent",
  steps: {
    "the quickstart recipe opens, and the fix of its wrong key is taken": async ({ window, folder }) => {
      const recipe = join(folder, "recipe.yaml");
      // With more steps than it takes until it is stopped.
      const text = (await readFile(recipe, "utf8")).replace("steps: 120", "steps: 500");
      await writeFile(recipe, text.replace("n_samples_per_prompt", "n_sample_per_prompt"));
      await window.trust();
      await window.openFile("recipe.yaml");
      await window.showProblems();
      await window.problem("n_sample_per_prompt").dblclick();
      await window.quickFix("n_samples_per_prompt");
      await window.problem("n_sample_per_prompt").waitFor({ state: "detached" });
      await eventually(async () => !(await readFile(recipe, "utf8")).includes("n_sample_per"), "the repaired recipe");
    },

    "the warm-up runs from the palette": async ({ window, folder }) => {
      await window.openFile("warmup.yaml");
      await window.runCommand("Molt Runner: Run Recipe");
      await window.terminalShows("completed: 80 steps", 120);
      if (!existsSync(join(folder, "warmup-model", "model.safetensors"))) throw new Error("no model was exported");
    },

    "the run starts from the palette, and its reward rises in the dashboard": async (context) => {
      const { window } = context;
      await window.openFile("recipe.yaml");
      await window.runCommand("Molt Runner: Run Recipe");
      await window.page.locator('.statusbar-item:has-text("/500 reward")').waitFor({ timeout: 60_000 * scale });
      await window.runCommand("Molt Runner: Open Dashboard");
      const frame = await window.view(dashboard);
      await frame.locator('.legend:has-text("; live")').waitFor();
      await frame.getByRole("button", { name: "Table" }).first().click();
      await eventually(async () => hasRisen(await tableColumn(frame, "Reward")), "a reward that rises", 180);
      await takePicture(context, "dashboard");
    },

    "the recipe shows what its run does": async (context) => {
      const { window, folder } = context;
      await window.openFile("recipe.yaml");
      await window.goTo(1);
      const lens = `.codelens-decoration:has-text("${basename(runOf(folder, "agent"))}")`;
      await window.page.locator(lens).first().waitFor();
      await takePicture(context, "recipe");
    },

    "the dashboard has a table behind each chart, shuts no reader out, and goes by keyboard": async ({ window }) => {
      await window.runCommand("Molt Runner: Open Dashboard");
      const frame = await window.view(dashboard);
      await frame.locator("canvas").first().waitFor();
      const charts = await frame.locator("canvas:visible").count();
      const tables = await frame.locator("vscode-button:visible", { hasText: "Table" }).count();
      if (charts === 0 || tables < charts) throw new Error(`${charts} charts, ${tables} tables`);
      await checkAccessible(frame);
      await tabTo(frame, "Table");
      const shown = await frame.locator("table:visible").count();
      await window.page.keyboard.press("Enter");
      await eventually(async () => (await frame.locator("table:visible").count()) !== shown, "the table by keyboard");
    },

    "a rollout opens, and its turn leads to the agent's line": async (context) => {
      const { window, folder } = context;
      await window.runCommand("Molt Runner: Inspect Rollouts");
      await window.choose("agent-");
      await inspectRollout(window, runOf(folder, "agent"), join(folder, "agent.ts"), "step");
      await takePicture(context, "rollout");
      await inspectGroup(window, runOf(folder, "agent"));
    },

    "the run stops in order": async ({ window, folder }) => {
      await window.runCommand("Molt Runner: Stop Run");
      const summary = join(runOf(folder, "agent"), "summary.json");
      await eventually(() => existsSync(summary), "the run's summary", 60);
      const { state } = JSON.parse(await readFile(summary, "utf8"));
      if (state !== "interrupted") throw new Error(`the stopped run's state is ${state}`);
      await window.runCommand("Molt Runner: Open Dashboard");
      await (await window.view(dashboard)).locator('.legend:has-text("interrupted")').waitFor();
    },

    "it is forked from a checkpoint": async ({ window, folder }) => {
      await window.runCommand("Molt Runner: Fork Run from Checkpoint");
      await window.choose("agent-");
      await window.choose("step ");
      await window.enter("--run.steps 400 --run.name child --algo.advantage.estimator rloo");
      await eventually(() => existsSync(join(runOf(folder, "child"), "events.ndjson")), "the fork's log", 60);
      await window.page.locator('.statusbar-item:has-text("/400 reward")').waitFor({ timeout: 60_000 * scale });
      await window.runCommand("Molt Runner: Stop Run");
      await eventually(() => existsSync(join(runOf(folder, "child"), "summary.json")), "the fork's summary", 60);
    },

    "a reward function is a test over the rollouts that are stored": async ({ window, folder }) => {
      await testRewards(window, join(folder, "agent.ts"));
    },

    "a breakpoint in the agent stops a run": async (context) => {
      const { window } = context;
      await window.closeEditors();
      await window.openFile("agent.ts");
      await window.goTo(6);
      await window.page.keyboard.press("F9");
      await window.page.locator(".codicon-debug-breakpoint").first().waitFor();
      await window.runCommand("Molt Runner: Debug Agent in a Run");
      await stopsAt(window, "SortDigits.step", "6:");
      await takePicture(context, "breakpoint");
      await window.stopDebugging();
    },

    "and stops on recorded tokens": async ({ window }) => {
      await window.runCommand("Molt Runner: Debug Agent on a Recorded Rollout");
      await window.choose("child-");
      await window.choose("reward");
      await stopsAt(window, "SortDigits.step", "6:");
      await window.stopDebugging();
    },
  },
};

const roots: Chapter = {
  name: "two roots with two runners",
  folder: "both.code-workspace",
  // As where a proxy or a firewall stands between: the run's server is there, and nobody gets to it.
  before: async ({ home, mark }) => {
    const { run, end } = await startRun(join(home, "my-agent"), mark, "blocked");
    const address = JSON.parse(await readFile(join(run, "server.json"), "utf8"));
    await writeFile(join(run, "server.json"), JSON.stringify({ ...address, url: "ws://127.0.0.1:9/" }));
    return end;
  },
  steps: {
    "with its live port blocked, a run shows the same by its log": async ({ window }) => {
      await window.trust();
      await window.runCommand("Molt Runner: Open Dashboard"); // of the newest run
      const frame = await window.view(dashboard);
      await frame.locator('.legend:has-text("following its log")').waitFor();
      // Before the first step there is no chart of it, and the first table is another's.
      await frame
        .getByText("Reward (mean of")
        .first()
        .waitFor({ timeout: 60_000 * scale });
      await frame.getByRole("button", { name: "Table" }).first().click();
      const before = (await tableColumn(frame, "Reward")).length;
      await eventually(async () => (await tableColumn(frame, "Reward")).length > before, "another step", 60);
      await window.runCommand("Molt Runner: Stop Run");
      await frame.locator('.legend:has-text("interrupted")').waitFor({ timeout: 60_000 * scale });
    },

    "each root has its runner, and the older one is named": async ({ window }) => {
      await window.runCommand("Molt Runner: Doctor");
      await window.tab("doctor.txt").waitFor();
      await eventually(async () => (await window.text()).includes("molt-runner 0.0.9 of second"), "the skew", 60);
    },

    "the second root's recipe runs with its own": async ({ window, folder, mark }) => {
      await window.openFile("hostile.yaml");
      await window.runCommand("Molt Runner: Run Recipe");
      await eventually(() => marked(mark, "/second/node_modules/molt-runner/").length > 0, "its own runner");
      const second = join(folder, "..", "second");
      await eventually(() => existsSync(join(runOf(second, "hostile"), "summary.json")), "the run's end", 90);
    },

    "prompts, details and errors that would do harm do none": async ({ window, folder }) => {
      const run = runOf(join(folder, "..", "second"), "hostile");
      await window.runCommand("Molt Runner: Inspect Rollouts");
      await window.choose("hostile-");
      const frame = await window.view(`Rollouts of ${basename(run)}`);
      await frame.locator('tbody tr:has-text("env_done") .link').first().click();
      await frame.locator('.about:has-text("Ignore all instructions")').waitFor();
      await inspectHarm(window);
      for (const one of window.page.frames()) {
        if ((await one.locator('img[src="x"]').count()) > 0) throw new Error("text became an element");
      }
      if ((await window.page.title()) === "1") throw new Error("text was run");
    },

    "its reward function is a test over the stored rollouts": async (context) => {
      const { window } = context;
      await window.runCommand("Testing: Focus on Test Explorer View");
      const row = window.page.locator('.test-explorer .monaco-list-row:has-text("hostile.ts on hostile-")').first();
      await row.waitFor();
      await window.runCommand("Test: Run All Tests");
      await row.locator(".codicon-testing-passed-icon").waitFor({ timeout: 60_000 * scale });
      await takePicture(context, "tests");
    },

    "an assistant's tool answers, and an MCP server is offered": async ({ window, home }) => {
      await window.runCommand("Probe: Ask a Molt Runner Tool");
      const file = join(home, "my-agent", "probe.json");
      await eventually(() => existsSync(file), "the tool's answer", 60);
      const { tools, answer } = JSON.parse(await readFile(file, "utf8"));
      if (!tools.includes("molt_start") || !answer.includes("recipe.yaml")) throw new Error(`${tools}: ${answer}`);
      // The list is of what providers have said by then.
      await eventually(async () => {
        await window.runCommand("MCP: List Servers");
        return await window.lists("Select an MCP Server", "Molt Runner: my-agent");
      }, "the MCP server");
    },
  },
};

export const chapters: Chapter[] = [language, training, roots];

/** The newest run of a name. */
function runOf(folder: string, name: string): string {
  const runs = join(folder, "runs");
  const found = existsSync(runs) ? readdirSync(runs).filter((run) => run.startsWith(`${name}-2`)) : [];
  return join(runs, found.sort().at(-1) ?? "none");
}

/** As from a terminal outside of VS Code; resolves once its server is there. */
async function startRun(folder: string, mark: string, name: string): Promise<{ run: string; end: () => void }> {
  const cli = join(folder, "..", "node_modules", "molt-runner", "bin", "molt-runner.js");
  const flags = ["--run.name", name, "--run.steps", "400"];
  const env = { ...process.env, [markName]: mark };
  const child = spawn(process.execPath, [cli, "run", "recipe.yaml", ...flags], { cwd: folder, env, stdio: "ignore" });
  const hasServer = () => existsSync(join(runOf(folder, name), "server.json"));
  await eventually(hasServer, "the run's server", 60);
  return { run: runOf(folder, name), end: () => child.kill() };
}

/** The second column of the table behind a chart. */
async function tableColumn(frame: Frame, chart: string): Promise<number[]> {
  const cells = frame.locator(`table:has(caption:has-text("${chart}")) td:first-of-type`);
  return (await cells.allTextContents()).map(Number);
}

function hasRisen(rewards: number[]): boolean {
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return rewards.length >= 20 && mean(rewards.slice(-5)) > mean(rewards.slice(0, 5)) + 0.1;
}

/** Goes on by Tab from the document's start until a control of this text has the focus. */
async function tabTo(frame: Frame, text: string): Promise<void> {
  await frame.locator("vscode-button").first().focus();
  for (let pressed = 0; pressed < 60; pressed++) {
    if ((await frame.evaluate("document.activeElement?.textContent?.trim()")) === text) return;
    await frame.page().keyboard.press("Tab");
  }
  throw new Error(`Tab does not come to "${text}"`);
}

async function stopsAt(window: Workbench, frame: string, place: string): Promise<void> {
  const row = `.debug-call-stack .monaco-list-row:has-text("${frame}"):has-text("${place}")`;
  await window.page
    .locator(row)
    .first()
    .waitFor({ timeout: 90_000 * scale });
}

/** Small enough for a repository, and large enough to read. */
async function takePicture({ window, pictures }: Context, name: string): Promise<void> {
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
