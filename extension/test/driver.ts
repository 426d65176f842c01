// What the scenario is written against: a VS Code window, whoever shows it. Both drivers give a Playwright page of the
// same workbench, so that only opening one differs.
import { setTimeout as sleep } from "node:timers/promises";
import type { Frame, Locator, Page } from "playwright-core";
import type { Installed } from "./install.ts";
import { scale } from "./vscode-web/setup.ts";

/** Fetches what the driver needs. Rejects with `NotRun` where that cannot be had. */
export type PrepareDriver = () => Promise<(installed: Installed, env: NodeJS.ProcessEnv) => Driver>;

export interface Driver {
  /** Installs the .vsix and gets ready to open windows. */
  start(): Promise<void>;
  /** Opens a folder or a `.code-workspace` file. */
  open(path: string): Promise<Workbench>;
  /** Leaves what is open. */
  leave(): Promise<void>;
  stop(): Promise<void>;
}

/** What is asked of a line; the compiler knows no DOM here. */
interface Drawn {
  style: { top: string };
}

export class Workbench {
  readonly page: Page;
  constructor(page: Page) {
    this.page = page;
    page.setDefaultTimeout(20_000 * scale);
    page.setDefaultNavigationTimeout(60_000 * scale);
  }

  async ready(): Promise<void> {
    await this.page.locator(".monaco-workbench").waitFor({ timeout: 60_000 * scale });
  }

  /** What was opened is listed in the explorer. */
  async hasFolders(): Promise<boolean> {
    const first = this.page.locator(".explorer-folders-view .monaco-list-row").first();
    return await isDone(first.waitFor({ timeout: 10_000 * scale }));
  }

  /** The folder that is open, with those below it, unless it is trusted already. */
  async trust(): Promise<void> {
    await this.runCommand("Workspaces: Manage Workspace Trust");
    const trusted = this.page.locator('.workspace-trust-editor:has-text("You trust this")');
    const button = this.page.locator('.workspace-trust-editor .monaco-button:has-text("Trust")').first();
    await trusted.or(button).first().waitFor();
    if (!(await trusted.isVisible())) await button.click();
    await trusted.waitFor();
    await this.page.locator(".modal-editor-action-container .codicon-close").click();
  }

  async openFile(name: string): Promise<void> {
    await this.pick("Control+p", name, name);
    await this.tab(name).waitFor();
  }

  async runCommand(title: string): Promise<void> {
    await this.pick("F1", `>${title}`, title);
  }

  /** Of the quick picks that a command opens, a row each; again where a view that had the keyboard takes it back. */
  async chooseFrom(command: string, ...texts: string[]): Promise<void> {
    await this.chosen(command, texts, () => true);
  }

  /** Of a quick pick of several. */
  async chooseAll(command: string, ...texts: string[]): Promise<void> {
    await this.chosen(command, texts, () => isDone(this.input.press("Enter", { timeout: brief })));
  }

  private async chosen(command: string, texts: string[], accept: () => unknown): Promise<void> {
    await eventually(async () => {
      await this.runCommand(command);
      for (const text of texts) {
        if (await isDone(this.row(text).click({ timeout: brief }))) continue;
        await this.page.keyboard.press("Escape");
        return false;
      }
      return await accept();
    }, `${texts} to be chosen`);
  }

  async chooseTheme(name: string): Promise<void> {
    await this.runCommand("Preferences: Color Theme");
    await this.page.locator('.quick-input-widget:visible input[placeholder^="Select Color Theme"]').fill(name);
    await this.row(name).click();
  }

  /** Into the input box that a command opened. */
  async enter(text: string): Promise<void> {
    await this.input.fill(text);
    await this.page.keyboard.press("Enter");
  }

  async goTo(line: number, column = 1): Promise<void> {
    await this.page.keyboard.press("Control+g");
    await this.enter(`:${line}:${column}`);
    await this.cursorAt(line);
  }

  async cursorAt(line: number): Promise<void> {
    await this.page.locator(`[id="status.editor.selection"]:has-text("Ln ${line},")`).waitFor();
  }

  /** The cursor is at the problem, in a focused editor. */
  async quickFix(text: string): Promise<void> {
    // The bulb says that the actions of this place are known: a key pressed before closes again.
    await this.page.locator(".editor-instance .monaco-editor.focused .lightBulbWidget").waitFor();
    const fix = this.page.locator(`.action-widget .monaco-list-row:has-text("${text}")`);
    // News of the document's problems closes the list.
    await eventually(async () => {
      await this.page.keyboard.press("Escape");
      await this.page.keyboard.press("Control+.");
      return await isDone(fix.click({ timeout: brief }));
    }, `the fix "${text}"`);
  }

  async terminalShows(text: string, timeoutS = 20): Promise<void> {
    await this.page
      .locator(`.xterm-rows:visible:has-text("${text}")`)
      .first()
      .waitFor({ timeout: timeoutS * 1000 * scale });
  }

  async showProblems(): Promise<void> {
    await this.runCommand("Problems: Focus on Problems View");
  }

  problem(text: string): Locator {
    return this.page.locator(`.markers-panel .monaco-list-row:has-text("${text}")`);
  }

  /** The palette knows the command; one that is not enabled is not offered. */
  async offers(title: string): Promise<boolean> {
    await this.page.keyboard.press("F1");
    await this.input.fill(`>${title}`);
    await this.page.locator(".quick-input-widget:visible .monaco-list-row").first().waitFor();
    const isOffered = (await this.row(title).count()) > 0;
    await this.page.keyboard.press("Escape");
    await this.input.waitFor({ state: "hidden" }); // a key pressed before goes to what is closing
    return isOffered;
  }

  /** Of a quick pick, known by its placeholder, that a command opened; closes it. */
  async lists(placeholder: string, text: string): Promise<boolean> {
    await this.page.locator(`.quick-input-widget:visible input[placeholder="${placeholder}"]`).waitFor();
    const isListed = await isDone(this.row(text).waitFor({ timeout: 1000 * scale }));
    await this.page.keyboard.press("Escape");
    await this.input.waitFor({ state: "hidden" });
    return isListed;
  }

  notification(text: string): Locator {
    return this.page.locator(`.notification-list-item:has-text("${text}")`).first();
  }

  async stopDebugging(): Promise<void> {
    await this.runCommand("Debug: Stop");
    await this.page.locator(".debug-toolbar").waitFor({ state: "hidden" });
  }

  async closeEditors(): Promise<void> {
    await this.runCommand("View: Close All Editors");
  }

  /** The text of the lines that the active editor shows. */
  async text(): Promise<string> {
    const lines = this.page.locator(".editor-group-container.active .view-lines:visible .view-line");
    // Lines come in the order in which they were drawn, with no-break spaces.
    const drawn = await lines.evaluateAll((nodes) =>
      nodes.map((node) => ({ top: Number.parseInt((node as unknown as Drawn).style.top, 10), text: node.textContent })),
    );
    const sorted = drawn.sort((one, other) => one.top - other.top);
    return sorted.map(({ text }) => text?.replaceAll("\u00a0", " ")).join("\n");
  }

  tab(name: string): Locator {
    return this.page.locator(`.tab.active[data-resource-name="${name}"]`);
  }

  /** The document of the open webview with this title, once it has loaded. */
  async view(title: string): Promise<Frame> {
    return await eventually(async () => {
      for (const frame of this.page.frames().reverse()) {
        if (frame.parentFrame() && (await frame.evaluate("document.title").catch(() => "")) === title) return frame;
      }
    }, `the webview "${title}"`);
  }

  /** Opens a quick pick by its key, writes into it, and chooses a row. */
  private async pick(key: string, written: string, row: string): Promise<void> {
    // What closes at that moment takes the pick with it; and one of commands lists what was enabled as it opened.
    await eventually(async () => {
      await this.page.keyboard.press(key);
      const isWritten = await isDone(this.input.fill(written, { timeout: brief }));
      if (isWritten && (await isDone(this.row(row).click({ timeout: brief })))) return true;
      await this.page.keyboard.press("Escape");
    }, `"${row}" to be picked`);
  }

  private get input(): Locator {
    return this.page.locator(".quick-input-widget:visible input.input");
  }

  private row(text: string): Locator {
    return this.page.locator(`.quick-input-widget:visible .monaco-list-row[aria-label*="${text}"]`).first();
  }
}

const brief = 3000 * scale;

/** False where it was not done in its time. */
function isDone(act: Promise<void>): Promise<boolean> {
  return act.then(
    () => true,
    () => false,
  );
}

/** Waits until an element holds the text; else throws with what it held. */
export async function says(of: Locator, text: string, timeoutS = 20): Promise<void> {
  let held = "";
  const holds = async () => {
    held = (await of.textContent({ timeout: 1000 * scale }).catch(() => null)) ?? "nothing, not being there";
    return held.includes(text);
  };
  await eventually(holds, () => `"${text}", and it held: ${held}`, timeoutS);
}

/** Polls until `check` gives something that is true. */
export async function eventually<T>(check: () => T | Promise<T>, what: string | (() => string), timeoutS = 20) {
  const deadline = Date.now() + timeoutS * 1000 * scale;
  for (;;) {
    const found = await check();
    if (found) return found as NonNullable<T>;
    if (Date.now() > deadline)
      throw new Error(`waited ${timeoutS * scale} s for ${typeof what === "string" ? what : what()}`);
    await sleep(100);
  }
}
