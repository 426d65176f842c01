// Each webview by keyboard alone and in a theme of high contrast, over a run that is at work.
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import type { Frame } from "playwright-core";
import { checkAccessible } from "./accessibility.ts";
import { type Chapter, type Context, dashboard, runOf, Terminal, takePicture } from "./chapter.ts";
import { eventually, says, type Workbench } from "./driver.ts";
import { reachesAll, tabTo } from "./keyboard.ts";

const theme = "Dark High Contrast";
const inspectorOf = ({ window, folder }: Context) => window.view(`Rollouts of ${basename(runOf(folder, "watched"))}`);

export const views: Chapter = {
  name: "the views by keyboard alone, in high contrast",
  folder: "my-agent",
  before: async (places) => {
    const terminal = new Terminal(places);
    await terminal.warmUp();
    await terminal.run("run", "recipe.yaml", "--run.name", "short", "--run.steps", "3", "--actor.adam.lr", "1e-4");
    await terminal.start("watched");
  },
  steps: {
    "the theme becomes one of high contrast, in the views too": async ({ window }) => {
      await window.trust();
      await window.chooseTheme(theme);
      await window.runCommand("Molt Runner: Open Dashboard");
      const frame = await window.view(dashboard);
      await eventually(() => frame.evaluate(isHighContrast), `${theme} in the dashboard`);
    },

    "the dashboard: all is reached, a chart's cross-hair and range move, another run is laid over": async (context) => {
      const { window } = context;
      const frame = await window.view(dashboard);
      await says(frame.locator(".legend"), "; live");
      await frame.locator("canvas").first().waitFor();
      await checkAccessible(frame);
      await reachesAll(window, frame);
      await tabTo(window, frame, "[role=slider]");
      await window.page.keyboard.press("ArrowRight");
      await eventually(async () => (await focused(frame, "aria-valuetext"))?.startsWith("step "), "the cross-hair");
      const before = await focused(frame, "aria-valuemin");
      for (const key of ["End", "+"]) await window.page.keyboard.press(key);
      await eventually(async () => (await focused(frame, "aria-valuemin")) !== before, "a smaller range");
      await window.page.keyboard.press("0");
      await tabTo(window, frame, "summary", "Runs");
      await window.page.keyboard.press("Enter");
      await tabTo(window, frame, `vscode-checkbox:not([aria-checked="true"])`);
      await window.page.keyboard.press("Space");
      await frame.locator(".legend li").nth(1).waitFor();
    },

    "compared runs: all is reached, and what their recipes differ in is told": async (context) => {
      const { window } = context;
      await window.chooseAll("Molt Runner: Compare Runs", "watched-", "short-");
      const frame = await window.view(dashboard);
      await tabTo(window, frame, "summary", "differ");
      await window.page.keyboard.press("Enter");
      await frame.locator('[role="region"]:has-text("actor.adam.lr")').waitFor();
      await frame.locator("canvas").first().waitFor();
      await checkAccessible(frame);
      await reachesAll(window, frame);
      await takePicture(context, "high-contrast");
    },

    "a live run's new rollouts come into its list, and what is being written there stays": async (context) => {
      const { window } = context;
      await window.closeEditors();
      await window.chooseFrom("Molt Runner: Inspect Rollouts", "watched-");
      const frame = await inspectorOf(context);
      await frame.locator("tbody .link").first().waitFor();
      await tabTo(window, frame, 'vscode-text-field[aria-label="step"]');
      await window.page.keyboard.type("7");
      const before = await newestStep(frame);
      await eventually(async () => (await newestStep(frame)) > before, `rollouts behind step ${before}`, 60);
      if ((await focused(frame, "aria-label")) !== "step") throw new Error("the filter has lost the focus");
      await window.page.keyboard.press("Backspace");
    },

    "the list: all is reached, sorted and filtered": async (context) => {
      const { window, folder } = context;
      const frame = await inspectorOf(context);
      // News of a run make the list anew under whoever goes through it; the last of them may still be on their way.
      await new Terminal(context).run("stop", runOf(folder, "watched"));
      await checkAccessible(frame);
      await reachesAll(window, frame).catch(() => reachesAll(window, frame));
      await tabTo(window, frame, "th:nth-child(7) button");
      await window.page.keyboard.press("Enter");
      await frame.locator('th[aria-sort="descending"]:has-text("trained")').waitFor();
      await tabTo(window, frame, 'vscode-text-field[aria-label="step"]');
      await window.page.keyboard.type("1");
      await window.page.keyboard.press("Enter");
      await eventually(async () => (await newestStep(frame)) === 1, "the rollouts of step 1");
    },

    "a rollout: it opens, tokens are gone over, its agent's line opens, and back": async (context) => {
      const { window, folder } = context;
      const frame = await inspectorOf(context);
      await tabTo(window, frame, "tbody .link");
      await window.page.keyboard.press("Enter");
      await frame.locator(".special").first().waitFor();
      await checkAccessible(frame);
      await reachesAll(window, frame);
      await tabTo(window, frame, "[role=option]");
      await eventually(async () => {
        for (const key of ["Home", "ArrowDown", "ArrowRight"]) await window.page.keyboard.press(key);
        return (await frame.locator(".facts").textContent())?.includes("in Turn 1");
      }, "the second token of the turn");
      await window.page.keyboard.press("Enter");
      await window.tab("agent.ts").waitFor();
      const lines = (await readFile(join(folder, "agent.ts"), "utf8")).split("\n");
      await window.cursorAt(1 + lines.findIndex((line) => line.includes("step(")));
      await back(window, frame);
    },

    "a group side by side, and as a table: all is reached, and back": async (context) => {
      const { window } = context;
      const frame = await inspectorOf(context);
      await tabTo(window, frame, "tbody td:last-child .link");
      await window.page.keyboard.press("Enter");
      await frame.locator("article").nth(1).waitFor();
      await checkAccessible(frame);
      await reachesAll(window, frame);
      await tabTo(window, frame, "vscode-checkbox");
      await window.page.keyboard.press("Space");
      await frame.locator("article table").first().waitFor();
      await checkAccessible(frame);
      await reachesAll(window, frame);
      await back(window, frame);
    },
  },
};

/** In the page. */
function isHighContrast(): boolean {
  return document.body.classList.contains("vscode-high-contrast");
}

function focused(frame: Frame, attribute: string): Promise<string | null> {
  return frame.evaluate((name) => document.activeElement?.getAttribute(name) ?? null, attribute);
}

/** The second column of the list. */
async function newestStep(frame: Frame): Promise<number> {
  const steps = await frame.locator("tbody td:nth-child(2)").allTextContents();
  return Math.max(...steps.map(Number));
}

async function back(window: Workbench, frame: Frame): Promise<void> {
  await tabTo(window, frame, '[aria-label="All rollouts"]');
  await window.page.keyboard.press("Enter");
  await frame.locator("tbody .link").first().waitFor();
}
