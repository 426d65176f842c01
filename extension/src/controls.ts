/// <reference lib="dom" />
// Every control of our pages: the one file to change for another library. Text is text, never markup.
import * as toolkit from "@vscode/webview-ui-toolkit";
import { visible } from "../../runner/src/telemetry/views/lines.ts";

const used = [toolkit.vsCodeButton(), toolkit.vsCodeCheckbox(), toolkit.vsCodeDropdown(), toolkit.vsCodeOption()];
toolkit.provideVSCodeDesignSystem().register(...used, toolkit.vsCodeTextField());

/** An element with its attributes, `class` too, and children; strings become text, in which nothing is unseen. */
export function element(name: string, attributes: Record<string, string> = {}, ...children: (Node | string)[]) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, visible(value));
  made.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

/** Gives `parent` these children. Those that are there already stay as they are, and with them the keyboard. */
export function place(parent: Element, children: Element[]): void {
  for (const child of [...parent.children]) if (!children.includes(child)) child.remove();
  for (const [at, child] of children.entries()) {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  }
}

/** With all of its row: that tells equal links of a table apart. */
const nameOf = (node: Element | null) =>
  node && `${node.closest("tr")?.textContent ?? ""} ${node.getAttribute("aria-label") ?? node.textContent}`;

/** The same, where others take their place: the keyboard goes to the one of its name, with what was being typed. */
export function replace(parent: Element, ...children: Element[]): HTMLElement | undefined {
  const before = parent.contains(document.activeElement) ? (document.activeElement as HTMLInputElement) : null;
  const name = nameOf(before);
  place(parent, children);
  if (!before || !name || before.isConnected) return undefined;
  const controls = parent.querySelectorAll<HTMLInputElement>("[aria-label], button, vscode-checkbox");
  const same = [...controls].find((control) => nameOf(control) === name);
  if (same?.matches("vscode-text-field")) same.value = before.value;
  same?.focus();
  return same;
}

/** `label`: what a screen reader says instead of a text that is only a sign. */
export function button(text: string, onClick: () => void, label = text): HTMLElement {
  const made = element("vscode-button", { appearance: "secondary", "aria-label": label, title: label }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** What turns pages, which count from 0; `none`: what it says where there are none. */
export function pager(page: number, pages: number, turn: (page: number) => void, none = ""): HTMLElement {
  const to = (text: string, other: number) => button(text, () => turn(other));
  const previous = page > 0 ? [to("Previous page", Math.min(page, pages) - 1)] : [];
  const next = page + 1 < pages ? [to("Next page", page + 1)] : [];
  return element("div", { class: "bar" }, ...previous, pages === 0 ? none : `Page ${page + 1} of ${pages}`, ...next);
}

export function checkbox(text: string, checked: boolean, onChange: (checked: boolean) => void): HTMLInputElement {
  const made = element("vscode-checkbox", {}, text) as HTMLInputElement;
  made.toggleAttribute("checked", checked);
  made.addEventListener("change", () => onChange(made.checked));
  return made;
}

export function dropdown(
  label: string,
  options: { value: string; text: string }[],
  value: string,
  onChange: (value: string) => void,
): HTMLElement {
  const items = options.map((option) => {
    const made = element("vscode-option", { value: option.value }, option.text);
    made.toggleAttribute("selected", option.value === value);
    return made;
  });
  const made = element("vscode-dropdown", { "aria-label": label, title: label }, ...items) as HTMLSelectElement;
  made.addEventListener("change", () => onChange(made.value));
  return made;
}

/** `onChange` at each change that is finished: Enter, or leaving the field. */
export function textField(label: string, value: string, onChange: (value: string) => void): HTMLElement {
  // The toolkit takes its text for its name.
  const made = element("vscode-text-field", { "aria-label": label, title: label, value }, label) as HTMLInputElement;
  made.addEventListener("change", () => onChange(made.value));
  return made;
}

/** `rows`: of texts or elements; the first of each is its head. */
export function tableOf(caption: string, head: string[], rows: (string | Node)[][]): HTMLElement {
  const columns = head.map((name) => element("th", { scope: "col" }, name));
  const lines = rows.map(([first, ...cells]) => {
    return element("tr", {}, element("th", { scope: "row" }, first!), ...cells.map((cell) => element("td", {}, cell)));
  });
  return element("table", {}, element("caption", {}, caption), element("tr", {}, ...columns), ...lines);
}
