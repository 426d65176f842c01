/// <reference lib="dom" />
import { fixed } from "../../runner/src/telemetry/views/lines.ts";
import type { RolloutRow } from "../../runner/src/telemetry/views/rollouts.ts";
import { button, dropdown, element, pager, textField } from "./controls.ts";
import type { RolloutPage, RolloutQuery } from "./rollout-index.ts";
import { link } from "./rollout-tokens.ts";
import { parseRange, rangeText, rowsAPage } from "./rollout-view.ts";

const columns = ["rollout", "step", "reward", "stop", "turns", "tokens", "trained", "dropped", "group"] as const;

interface Actions {
  change(query: Partial<RolloutQuery>): void;
  refresh(): void;
  /** A rollout, or a group. */
  open(id: string): void;
}

/** A page of rollouts, with what filters, sorts and turns pages. */
export function renderList(list: RolloutPage, query: RolloutQuery, actions: Actions): HTMLElement {
  const head = element("tr", {}, ...columns.map((name) => header(name, query, actions)));
  const rows = list.rows.map((row) => element("tr", {}, ...columns.map((name) => cell(row, name, actions))));
  const caption = element("caption", {}, "The first column opens a rollout, the last its group");
  const table = element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...rows));
  const pages = Math.ceil(list.matching / rowsAPage);
  const turner = pager(query.page, pages, (page) => actions.change({ page }), "None is stored that fits.");
  return element("div", {}, filters(list, query, actions), table, turner);
}

function filters({ stops, drops }: RolloutPage, query: RolloutQuery, { change, refresh }: Actions): HTMLElement {
  const words = (of: "stop" | "dropped", values: string[]) => {
    const options = [{ value: "", text: `${of}: any` }, ...values.map((value) => ({ value, text: value }))];
    return dropdown(of, options, query[of] ?? "", (value) => change({ [of]: value || undefined }));
  };
  const range = (of: "reward" | "tokens") =>
    textField(`${of} (low..high)`, rangeText(query[of]), (text) => change({ [of]: parseRange(text) }));
  const step = textField("step", String(query.step ?? ""), (text) => change({ step: parseRange(text)?.[0] }));
  const group = textField("group", query.group ?? "", (text) => change({ group: text.trim() || undefined }));
  const all = [words("stop", stops), words("dropped", drops), range("reward"), range("tokens"), step, group];
  const bar = { class: "bar", role: "group", "aria-label": "Filters" };
  return element("div", bar, ...all, button("Refresh", refresh));
}

function header(name: keyof RolloutRow, { sort, descending }: RolloutQuery, { change }: Actions): HTMLElement {
  const isSorted = sort === name;
  const order = descending ? "descending" : "ascending";
  const sorter = element("button", { class: "plain" }, name);
  sorter.addEventListener("click", () => change({ sort: name, descending: !(isSorted && descending) }));
  return element("th", { scope: "col", "aria-sort": isSorted ? order : "none" }, sorter);
}

function cell(row: RolloutRow, name: keyof RolloutRow, { open }: Actions): HTMLElement {
  const text = name === "reward" ? fixed(row.reward) : String(row[name] ?? "-");
  const isLink = name === "rollout" || name === "group";
  return element("td", {}, isLink ? link(text, () => open(row[name])) : text);
}
