// A webview without a mouse: what Tab comes to, and what keys do there.
import { setTimeout as sleep } from "node:timers/promises";
import type { Frame } from "playwright-core";
import { eventually, type Workbench } from "./driver.ts";
import { scale } from "./vscode-web/setup.ts";

const controls = [
  "vscode-button, vscode-checkbox, vscode-dropdown, vscode-text-field, button, summary",
  '[tabindex="0"]:not(main)',
].join(", ");
const mostPresses = 1000;

/** In the page: from its start, with what has the focus from then on. */
function beginAtStart(): void {
  const start = document.getElementById("main")!;
  start.tabIndex = -1;
  start.focus();
  const reached = new Set<Element>();
  Object.assign(globalThis, { reached });
  document.addEventListener("focusin", ({ target }) => reached.add(target as Element));
}

/** In the page: what is seen and was not come to. */
function notReached(selector: string): string[] {
  const { reached } = globalThis as unknown as { reached: Set<Element> };
  const isSeen = (node: Element) => node.checkVisibility({ visibilityProperty: true }) && !node.closest("[inert]");
  const missed = [...document.querySelectorAll(selector)].filter((node) => isSeen(node) && !reached.has(node));
  return missed.map((node) => `<${node.localName}> ${node.getAttribute("aria-label") ?? node.textContent}`);
}

/** In the page. */
function hasFocus([selector, text]: readonly [string, string]): boolean {
  const focus = document.activeElement!;
  return focus.matches(selector) && focus.textContent!.includes(text);
}

/** Tab comes to every control, and then leaves the view. */
export async function reachesAll(window: Workbench, frame: Frame): Promise<void> {
  await enter(window, frame);
  const isWithin = () => frame.evaluate("document.hasFocus()");
  for (let pressed = 0; await isWithin(); pressed++) {
    if (pressed === mostPresses) throw new Error(`${mostPresses} times Tab do not leave the view`);
    await window.page.keyboard.press("Tab");
  }
  const missed = await frame.evaluate(notReached, controls);
  if (missed.length > 0)
    throw new Error(`Tab does not come to ${missed.length}:\n  ${missed.slice(0, 20).join("\n  ")}`);
}

/** Goes on by Tab from the view's start until a control of this selector, and with this text, has the focus. */
export async function tabTo(window: Workbench, frame: Frame, selector: string, text = ""): Promise<void> {
  await enter(window, frame);
  const isThere = () => frame.evaluate(hasFocus, [selector, text] as const);
  for (let pressed = 0; pressed < mostPresses; pressed++) {
    await window.page.keyboard.press("Tab");
    if (await isThere()) return;
  }
  throw new Error(`Tab does not come to ${selector} ${text}`);
}

/** The view is in the first group of editors. */
async function enter({ page }: Workbench, frame: Frame): Promise<void> {
  await eventually(async () => {
    if (await frame.evaluate("document.hasFocus()")) return true;
    await page.keyboard.press("Control+1");
    // The focus goes by the outer frame to the inner one; keys on its way are lost.
    await sleep(300 * scale);
  }, "the keyboard in the view");
  await frame.evaluate(beginAtStart);
}
