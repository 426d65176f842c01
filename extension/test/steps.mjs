// What a user does and sees, in order. A step waits for what it expects, up to the page's deadline, else throws.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { scale } from "./vscode-web/setup.mjs";

const misspelt = "batch_sise";
const right = "batch_size";
const problem = `.markers-panel .monaco-list-row:has-text("${misspelt}")`;

export const steps = {
  "a recipe opens and the language server starts": async ({ page }) => {
    await page.locator(".monaco-workbench").waitFor({ timeout: 60_000 * scale });
    await openFile(page, "sort.yaml");
    await page.locator('[id="molt-runner.molt-runner-vscode.status"]:has-text("Molt: ready")').waitFor();
  },

  "a misspelt key is underlined": async ({ page }) => {
    await page.locator(".squiggly-error").first().waitFor();
  },

  "Problems suggests the right key": async ({ page }) => {
    await runCommand(page, "Problems: Focus on Problems View");
    await page.locator(`${problem}:has-text("did you mean '${right}'")`).waitFor();
  },

  "Run Recipe shows the runner's answer in a terminal": async ({ page }) => {
    await runCommand(page, "Molt Runner: Run Recipe");
    await page.locator(`.xterm-rows:has-text("recipes/sort.yaml:6:3")`).waitFor();
    await page.locator(`.xterm-rows:has-text("did you mean '${right}'")`).waitFor();
  },

  "the quick fix repairs it, on disk too": async ({ page, workspace }) => {
    await runCommand(page, "Problems: Focus on Problems View");
    await page.locator(problem).dblclick(); // moves to the place and gives the editor the focus
    await page.locator('[id="status.editor.selection"]:has-text("Ln 6")').waitFor();
    // The bulb says that the actions of this place are known: a key pressed before closes again.
    await page.locator(".editor-instance .monaco-editor.focused .lightBulbWidget").waitFor();
    await page.keyboard.press("Control+.");
    await page.locator(`.action-widget .monaco-list-row:has-text("${right}")`).click();
    await page.locator(problem).waitFor({ state: "detached" });
    await eventually(async () => {
      const text = await readFile(join(workspace, "recipes", "sort.yaml"), "utf8");
      return text.includes(`  ${right}: 4`);
    }, "the repaired key on disk");
  },

  "completion offers the key, hover explains it, and a hint says what its value comes to": async ({ page }) => {
    await page.locator('.view-line:has-text("32")').waitFor(); // 4 prompts x 8 samples
    await runCommand(page, "Trigger Suggest");
    await page.locator(`.suggest-widget.visible .monaco-list-row:has-text("${right}")`).waitFor();
    await page.keyboard.press("Escape");
    await runCommand(page, "Show or Focus Hover");
    await page.locator(`.monaco-hover:visible:has-text("rollout.${right}")`).waitFor();
    await page.keyboard.press("Escape");
  },

  "a lens above the recipe checks it in a terminal": async ({ page }) => {
    await page.locator('.codelens-decoration a:has-text("check")').click();
    await page.locator('.xterm-rows:has-text("train.agent_path recipes/agent.ts: this file")').waitFor();
    await runCommand(page, "Problems: Focus on Problems View");
  },

  "YAML that is no recipe is left alone": async ({ page }) => {
    await openFile(page, "services.yaml");
    await page.locator(".view-line:has-text('imagee')").waitFor();
    // The server answers in order: once a recipe opened later has its problem, this document was looked at.
    await openFile(page, "second.yaml");
    await page.locator('.markers-panel .monaco-list-row:has-text("stepz")').waitFor();
    const flagged = await page.locator('.markers-panel .monaco-list-row:has-text("services.yaml")').count();
    if (flagged > 0) throw new Error("services.yaml, which is no recipe, has problems");
  },

  "Run Recipe takes the verb that the recipe is for": async ({ page }) => {
    await openFile(page, "imitate.yaml");
    await runCommand(page, "Molt Runner: Run Recipe");
    // `run` would ask for an agent before it looks for the model.
    await page.locator(`.xterm-rows:has-text("absent-model: this model folder does not")`).waitFor();
  },
};

async function openFile(page, name) {
  await page.keyboard.press("Control+p");
  await page.locator(".quick-input-widget:visible input.input").fill(name);
  await page.locator(`.quick-input-widget .monaco-list-row[aria-label*="${name}"]`).first().click();
  await page.locator(`.tab.active[data-resource-name="${name}"]`).waitFor();
}

async function runCommand(page, title) {
  await page.keyboard.press("F1");
  await page.locator(".quick-input-widget:visible input.input").fill(`>${title}`);
  await page.locator(`.quick-input-widget .monaco-list-row[aria-label*="${title}"]`).first().click();
}

async function eventually(check, what) {
  const deadline = Date.now() + 20_000 * scale;
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`waited 20 s for ${what}`);
    await sleep(100);
  }
}
