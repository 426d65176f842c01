/// <reference lib="dom" />
// The rollout inspector's page: a list, or in its place a rollout or those of a group.
import { visible } from "../../runner/src/telemetry/views/lines.ts";
import { button, element } from "./controls.ts";
import { onMessage, post, savedState, saveState } from "./page.ts";
import type { RolloutQuery } from "./rollout-index.ts";
import { renderList } from "./rollout-list.ts";
import { renderShown } from "./rollout-tokens.ts";
import type { FromInspector, InspectorState, Shown, ToInspector } from "./rollout-view.ts";

const newest: RolloutQuery = { sort: "step", descending: true, page: 0 };
const first = { directory: "", query: newest, id: null, coloring: "mask", asTable: false } satisfies InspectorState;
const state: InspectorState = { ...first, ...savedState<InspectorState>() };
const heading = element("h1");
const status = element("p", { role: "status", class: "note" });
const content = element("div");
/** The newest that was shown: drawn again without being read again. */
let known: Shown | null = null;

const tell = (message: FromInspector) => post(message);

/** Goes where the state says. */
function go(changed: Partial<InspectorState> = {}, anew = false): void {
  Object.assign(state, changed);
  saveState(state);
  const { id, query, directory } = state;
  heading.textContent = visible(id ?? `Rollouts of ${directory.split(/[\\/]/).at(-1)}`);
  if (id !== null && known?.id === id) show(renderShown(known, state, go, openSource), "", ".tokens > *");
  else {
    status.textContent = "Reading …";
    tell(id === null ? { type: "list", query, anew } : { type: "open", id });
  }
}

function openSource(place: string): void {
  tell({ type: "source", place });
}

/** The keyboard stays on the control that it was on; `focus`: where it goes if that is gone. */
function show(view: HTMLElement, text: string, focus = ".link"): void {
  const nameOf = (node: Element | null) => node?.getAttribute("aria-label") ?? node?.textContent;
  const name = content.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  content.replaceChildren(view);
  status.textContent = text;
  const controls = [...view.querySelectorAll<HTMLElement>("[aria-label], button, vscode-checkbox")];
  const same = name ? controls.find((control) => nameOf(control) === name) : undefined;
  (same ?? view.querySelector<HTMLElement>(focus))?.focus();
}

/** All but the filters, in which somebody may be writing, and without taking the focus from elsewhere. */
function renew(list: HTMLElement, text: string): void {
  const focus = document.activeElement;
  const name = focus?.closest("table, table + .bar") ? focus.textContent : null;
  const parts = ["table", "table + .bar"].map(
    (part) => [content.querySelector(part), list.querySelector(part)!] as const,
  );
  for (const [old, now] of parts) old?.replaceWith(now);
  status.textContent = text;
  const controls = [...content.querySelectorAll<HTMLElement>("table button, table + .bar vscode-button")];
  if (name) controls.find(({ textContent }) => textContent === name)?.focus();
}

function receive(message: ToInspector): void {
  if (message.type === "go") {
    const { directory, id, query } = message;
    go({ directory, id, query: id === null ? { ...newest, ...query } : state.query });
  } else if (message.type === "problem") {
    const back = button("All rollouts", () => go({ id: null }));
    show(element("div", {}, element("p", {}, visible(message.message)), back), "That could not be shown.");
  } else if (message.type === "list" && state.id === null) {
    const { matching, stored } = message;
    const change = (query: Partial<RolloutQuery>) => go({ query: { ...state.query, page: 0, ...query } });
    const refresh = () => go({}, true);
    const list = renderList(message, state.query, { change, refresh, open: (id) => go({ id }) });
    if (message.isNews) renew(list, `${matching} of ${stored}`);
    else show(list, `${matching} of ${stored}`);
  } else if (message.type === "shown" && message.shown.id === state.id) {
    known = message.shown;
    go();
  }
}

document.getElementById("main")!.append(heading, status, content);
onMessage(receive);
if (state.directory !== "") go();
tell({ type: "ready" });
