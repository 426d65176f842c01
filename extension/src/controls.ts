/// <reference lib="dom" />
// Every control of our pages: the one file to change for another library. Text is text, never markup.
import * as toolkit from "@vscode/webview-ui-toolkit";

const used = [toolkit.vsCodeButton(), toolkit.vsCodeCheckbox(), toolkit.vsCodeDropdown(), toolkit.vsCodeOption()];
toolkit.provideVSCodeDesignSystem().register(...used, toolkit.vsCodeTextField());

/** An element with its attributes, `class` too, and children; strings become text. */
export function element(name: string, attributes: Record<string, string> = {}, ...children: (Node | string)[]) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

/** `label`: what a screen reader says instead of a text that is only a sign. */
export function button(text: string, onClick: () => void, label = text): HTMLElement {
  const made = element("vscode-button", { appearance: "secondary", "aria-label": label, title: label }, text);
  made.addEventListener("click", onClick);
  return made;
}

export function checkbox(text: string, checked: boolean, onChange: (checked: boolean) => void): HTMLElement {
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
  const attributes = { "aria-label": label, title: label, placeholder: label, value };
  const made = element("vscode-text-field", attributes) as HTMLInputElement;
  made.addEventListener("change", () => onChange(made.value));
  return made;
}
