// From a recipe to a trained model: run, watch, inspect, stop, go on, fork, test, debug.
import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { checkAccessible } from "./accessibility.ts";
import { type Chapter, dashboard, endless, runOf, tableColumn, takePicture } from "./chapter.ts";
import { eventually, says, type Workbench } from "./driver.ts";
import { debugReward, inspectGroup, inspectRollout, testRewards } from "./inspector.ts";
import { scale } from "./vscode-web/setup.ts";

export const training: Chapter = {
  name: "from a recipe to a trained model",
  folder: "my-agent",
  steps: {
    "the quickstart recipe opens, and the fix of its wrong key is taken": async ({ window, folder }) => {
      const recipe = join(folder, "recipe.yaml");
      const text = (await readFile(recipe, "utf8"))
        .replace("steps: 120", `steps: ${endless["run.steps"]}`)
        .replace("lr_warmup_ratio: 0.033", `lr_warmup_ratio: ${endless["actor.lr_warmup_ratio"]}`)
        .replace("dynamic_filtering: drop", `dynamic_filtering: ${endless["algo.dynamic_filtering"]}`);
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
      await says(liveRun(window), `/${endless["run.steps"]} reward`, 60);
      await window.runCommand("Molt Runner: Open Dashboard");
      const frame = await window.view(dashboard);
      await says(frame.locator(".legend"), "; live");
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

    "the dashboard has a table behind each chart, and shuts no reader out": async ({ window }) => {
      await window.runCommand("Molt Runner: Open Dashboard");
      const frame = await window.view(dashboard);
      await frame.locator("canvas").first().waitFor();
      const charts = await frame.locator("canvas:visible").count();
      const tables = await frame.locator("vscode-button:visible", { hasText: "Table" }).count();
      if (charts === 0 || tables < charts) throw new Error(`${charts} charts, ${tables} tables`);
      await checkAccessible(frame);
    },

    "a rollout opens, and its turn leads to the agent's line": async (context) => {
      const { window, folder } = context;
      await window.chooseFrom("Molt Runner: Inspect Rollouts", "agent-");
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
      await says((await window.view(dashboard)).locator(".legend"), "interrupted");
    },

    "it is resumed from the palette, goes on behind the step that it had, and stops again": async (context) => {
      const { window, folder } = context;
      const run = runOf(folder, "agent");
      const stepOf = async () => JSON.parse(await readFile(join(run, "summary.json"), "utf8")).steps as number;
      const before = await stepOf();
      await window.chooseFrom("Molt Runner: Resume Run", "agent-");
      await window.terminalShows("resuming at ", 60);
      await says((await window.view(dashboard)).locator(".legend"), "; live", 60);
      const reached = async () => Number(/(\d+)\//.exec((await liveRun(window).textContent()) ?? "")?.[1] ?? 0);
      await eventually(async () => (await reached()) > before, `a step behind ${before}`, 60);
      await window.runCommand("Molt Runner: Stop Run");
      await eventually(async () => (await stepOf()) > before, "the resumed run's summary", 60);
    },

    "its recipe's model is evaluated from the palette": async ({ window }) => {
      await window.openFile("recipe.yaml");
      await window.runCommand("Molt Runner: Evaluate");
      await window.terminalShows("accuracy", 60);
    },

    "it is forked from a checkpoint": async ({ window, folder }) => {
      await window.chooseFrom("Molt Runner: Fork Run from Checkpoint", "agent-", "step ");
      await window.enter("--run.steps 90000 --run.name child --algo.advantage.estimator rloo");
      await eventually(() => existsSync(join(runOf(folder, "child"), "events.ndjson")), "the fork's log", 60);
      await says(liveRun(window), "/90000 reward", 60);
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
      await window.chooseFrom("Molt Runner: Debug Agent on a Recorded Rollout", "child-", "reward");
      await stopsAt(window, "SortDigits.step", "6:");
      await window.stopDebugging();
    },

    "and one in a reward function stops its test": async ({ window, folder }) => {
      const line = await debugReward(window, join(folder, "agent.ts"));
      await stopsAt(window, "grade", `${line}:`);
      await window.stopDebugging();
    },
  },
};

function hasRisen(rewards: number[]): boolean {
  const mean = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return rewards.length >= 20 && mean(rewards.slice(-5)) > mean(rewards.slice(0, 5)) + 0.1;
}

/** The status bar's item of the live run. */
const liveRun = ({ page }: Workbench) => page.locator('[id="molt-runner.molt-runner-vscode.run"]');

async function stopsAt(window: Workbench, frame: string, place: string): Promise<void> {
  const row = `.debug-call-stack .monaco-list-row:has-text("${frame}"):has-text("${place}")`;
  await window.page
    .locator(row)
    .first()
    .waitFor({ timeout: 90_000 * scale });
}
