// What a recipe's author sees: problems, fixes, completion, lenses; and what a workspace without trust may not do.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Chapter } from "./chapter.ts";
import { eventually } from "./driver.ts";
import { marked } from "./processes.ts";

const misspelt = "batch_sise";
const right = "batch_size";

const status = '[id="molt-runner.molt-runner-vscode.status"]';

export const language: Chapter = {
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
