/// <reference lib="dom" />
// The rollout inspector's page: a list, or in its place a rollout or those of a group.
import { visible } from "../../runner/src/telemetry/views/lines.ts";
import { button, element, replace } from "./controls.ts";
import { onMessage, post, savedState, saveState } from "./page.ts";
import type { RolloutQuery } from "./rollout-index.ts";
import { renderList } from "./rollout-list.ts";
import { renderShown } from "./rollout-tokens.ts";
import type { FromInspector, InspectorState, Shown, ToInspector } from "./rollout-view.ts";

const newest: RolloutQuery = { sort: "step", descending: true, page: 0 };
const first = {
  directory: "",
  query: newest,
  id: null,
  coloring: "mask",
  asTable: false,
  tokenPage: 0,
} satisfies InspectorState;
const state: InspectorState = { ...first, ...savedState<InspectorState>() };
const heading = element("h1");
const status = element("p", { role: "status", class: "note" });
const content = element("div");
/** The newest that was shown: drawn again without being read again. */
let known: Shown | null = null;

const tell = (message: FromInspector) => post(message);

/** Goes where the state says. */
function go(changed: Partial<InspectorState> = {}, anew = false): void {
  Object.assign(state, "id" in changed && { tokenPage: 0 }, changed);
  saveState(state);
  const { id, query, directory } = state;
  heading.textContent = visible(id ?? `Rollouts of ${directory.split(/[\\/]/).at(-1)}`);
  if (id !== null && known?.id === id) show(renderShown(known, state, go, openSource), ".tokens > *");
  else {
    status.textContent = "Reading …";
    tell(id === null ? { type: "list", query, anew } : { type: "open", id });
  }
}

function openSource(place: string): void {
  tell({ type: "source", place });
}

/** The keyboard stays on the control that it was on; `focus`: where it goes if that is gone. */
function show(view: HTMLElement, focus = ".link"): void {
  status.textContent = "";
  const same = replace(content, view);
  if (!same) view.querySelector<HTMLElement>(focus)?.focus();
}

function receive(message: ToInspector): void {
  if (message.type === "go") {
    const { directory, id, query } = message;
    go({ directory, id, query: id === null ? { ...newest, ...query } : state.query });
  } else if (message.type === "problem" && message.id === state.id) {
    const back = button("All rollouts", () => go({ id: null }));
    show(element("div", {}, element("p", {}, `That could not be shown: ${message.message}`), back));
  } else if (message.type === "list" && state.id === null) {
    const { matching, stored } = message;
    const change = (query: Partial<RolloutQuery>) => go({ query: { ...state.query, page: 0, ...query } });
    const refresh = () => go({}, true);
    const list = renderList(message, state.query, { change, refresh, open: (id) => go({ id }) });
    const filters = message.isNews && content.querySelector('[aria-label="Filters"]');
    // Somebody may be writing in these.
    if (filters) replace(filters.parentElement!, filters, ...[...list.children].slice(1));
    else show(list);
    status.textContent = `${matching} of ${stored}`;
  } else if (message.type === "shown" && message.shown.id === state.id) {
    known = message.shown;
    go();
  }
}

document.getElementById("main")!.append(heading, status, content);
onMessage(receive);
if (state.directory !== "") go();
tell({ type: "ready" });
