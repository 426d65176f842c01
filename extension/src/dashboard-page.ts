/// <reference lib="dom" />
// The dashboard's page: runs laid over each other, a chart a metric, one range of steps and one cross-hair for all.
import { visible } from "../../runner/src/telemetry/views/lines.ts";
import { chartsOf, prefixes, timeParts } from "./charts.ts";
import { button, checkbox, element, place, replace, tableOf } from "./controls.ts";
import type { FromPage, RunStatus, SavedState, ToPage } from "./messages.ts";
import { onMessage, post, savedState, saveState } from "./page.ts";
import { Chart, type Line, type Shared, swatch } from "./plot.ts";
import { RunSeries } from "./series.ts";

interface Run {
  name: string;
  series: RunSeries;
  status: RunStatus | null;
}

/** By directory: what chooses it, of all that can be shown, and what is. */
const boxes = new Map<string, HTMLInputElement>();
const runs = new Map<string, Run>();
/** By metric, or by the stack's prefix and a run. */
const charts = new Map<string, Chart>();
const stale = new Set<Chart>();
const state: SavedState = { shown: [], range: null, ...savedState<SavedState>() };
let step: number | null = null;
let isPainting = false;

const picker = element("div", { class: "bar" });
const noRun = element("p", {}, "No run is in this workspace yet: start one with Run Recipe.");
const legend = element("ul", { class: "legend", "aria-label": "Shown runs" });
const news = element("p", { role: "status", class: "note" });
const alarms = element("ul", { class: "alarms" });
const alarmTitle = element("summary");
const alarmSection = element("details", { open: "", hidden: "" }, alarmTitle, alarms);
const differing = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" });
const differences = element("details", { hidden: "" }, element("summary", {}, "What the recipes differ in"), differing);
const grids = element("div");

/** More of them would be slow, and nobody reads them. */
const mostAlarms = 100;

const tell = (message: FromPage) => post(message);
const letterOf = (index: number) => String.fromCharCode(65 + (index % 26));
const shownRuns = () => state.shown.flatMap((directory) => runs.get(directory) ?? []);

const shared: Shared = {
  zoom(range) {
    state.range = range;
    saveState(state);
    redraw();
  },
  zoomBy(factor) {
    const [{ from, to }, whole] = [rangeOf(), wholeRange()];
    const middle = step !== null && step >= from && step <= to ? step : (from + to) / 2;
    const next = { from: middle - (middle - from) * factor, to: middle + (to - middle) * factor };
    const size = next.to - next.from;
    if (size >= 2) shared.zoom(size >= whole.to - whole.from ? null : next);
  },
  panBy(share) {
    const { from, to } = rangeOf();
    const by = (to - from) * share;
    if (state.range) shared.zoom({ from: from + by, to: to + by });
  },
  point(at) {
    step = at;
    for (const chart of charts.values()) chart.point(at);
  },
};

function build(): void {
  const tools = [
    button("+", () => shared.zoomBy(0.5), "Zoom in"),
    button("−", () => shared.zoomBy(2), "Zoom out"),
    button("◀", () => shared.panBy(-0.25), "Earlier steps"),
    button("▶", () => shared.panBy(0.25), "Later steps"),
    button("All steps", () => shared.zoom(null)),
    button("Rollouts of this step", inspectStep, "Rollouts of this step: at the cross-hair, else all"),
  ];
  const keys = "In a chart: arrow keys move the cross-hair, with Shift the range; + and − zoom, 0 shows all steps.";
  document
    .getElementById("main")!
    .append(
      element("h1", {}, "Dashboard"),
      element("details", {}, element("summary", {}, "Runs"), picker),
      ...[legend, news, element("div", { class: "bar", role: "toolbar", "aria-label": "Steps" }, ...tools)],
      element("p", { class: "note" }, `${keys} Drag to zoom, double-click for all.`),
      ...[alarmSection, differences, grids],
    );
}

function receive(message: ToPage): void {
  if (message.type === "runs") showRuns(message.runs, message.shown);
  else if (message.type === "status") showStatus(message.status);
  else if (message.type === "differences") showDifferences(message);
  else takeRows(message);
}

function showRuns(known: { directory: string; name: string }[], shown: string[]): void {
  state.shown = shown;
  saveState(state);
  for (const directory of runs.keys()) if (!shown.includes(directory)) runs.delete(directory);
  for (const { directory, name } of known) {
    const isShown = shown.includes(directory);
    if (isShown && !runs.has(directory)) runs.set(directory, { name, series: new RunSeries(), status: null });
    const box = boxes.get(directory) ?? boxOf(directory, name);
    boxes.set(directory, box);
    // It may have been chosen elsewhere.
    box.checked = isShown;
  }
  place(picker, known.length === 0 ? [noRun] : known.map(({ directory }) => boxes.get(directory)!));
  showLegend();
  showAlarms();
  arrange();
}

function boxOf(directory: string, name: string): HTMLInputElement {
  return checkbox(name, state.shown.includes(directory), (on) => {
    if (on === state.shown.includes(directory)) return;
    const others = state.shown.filter((one) => one !== directory);
    state.shown = on ? [...others, directory] : others;
    tell({ type: "show", directories: state.shown });
  });
}

function takeRows({ directory, from, tables }: Extract<ToPage, { type: "rows" }>): void {
  const series = runs.get(directory)?.series;
  const before = series?.names.length;
  series?.replaceFrom(from, tables);
  if (series?.names.length !== before) arrange();
  redraw();
}

function showStatus(status: RunStatus): void {
  const run = runs.get(status.directory);
  if (!run) return;
  if (run.status?.standing !== status.standing) news.textContent = visible(`${run.name}: ${status.standing}`);
  const hasAlarms = status.alarms.length !== (run.status?.alarms.length ?? 0);
  run.status = status;
  showLegend();
  if (hasAlarms) showAlarms();
}

function showLegend(): void {
  const items = shownRuns().map(({ name, status }, index) => {
    const { label = "", standing = "" } = status ?? {};
    const said = label.includes(standing) ? ` ${label}` : ` ${label}; ${standing}`;
    return element("li", {}, swatch(index), `${letterOf(index)} `, element("strong", {}, name), said);
  });
  legend.replaceChildren(...items);
}

function shownAlarms() {
  const all = shownRuns().flatMap(({ name, status }) => {
    return (status?.alarms ?? []).map((alarm) => ({ name, directory: status!.directory, ...alarm }));
  });
  return all.sort((one, other) => one.step - other.step);
}

function showAlarms(): void {
  const all = shownAlarms();
  const newest = all
    .slice(-mostAlarms)
    .map(({ name, directory, step: at, rule, severity, message, key, rolloutIds }) => {
      const text = `${name}, step ${at}: ${severity} ${rule}: ${message}${key ? ` (${key})` : ""} `;
      const [rolloutId] = rolloutIds;
      const look = () => tell({ type: "inspect", directory, step: at, rolloutId });
      const label = `Rollouts of ${name}: ${rule} at step ${at}`;
      return element("li", {}, text, ...(rolloutId === undefined ? [] : [button("Rollouts", look, label)]));
    });
  replace(alarms, ...newest);
  const isCut = all.length > newest.length;
  alarmTitle.textContent = isCut ? `Alarms: the newest ${newest.length} of ${all.length}` : "Alarms";
  alarmSection.hidden = all.length === 0;
  redraw();
}

function showDifferences({ differences: found, problem }: Extract<ToPage, { type: "differences" }>): void {
  differences.hidden = state.shown.length < 2;
  const rows = found.map(({ key, values }) => {
    const cells = values.map(({ value, source }) => element("span", {}, element("code", {}, value), ` ${source}`));
    return [key, ...cells];
  });
  const caption = problem ?? (rows.length === 0 ? "No value differs." : "Values, and what gave them.");
  differing.replaceChildren(tableOf(caption, ["key", ...shownRuns().map(({ name }) => name)], rows));
}

/** Puts the charts that the runs have numbers for in their sections; those that are there already stay. */
function arrange(): void {
  const metrics = [...new Set(shownRuns().flatMap(({ series }) => series.names))];
  const kept = new Set<string>();
  const sections = chartsOf(metrics).map(({ title, closed, charts: wanted }) => {
    const roots = wanted.flatMap(({ key, title: of }) => {
      const timed = [...runs].filter(([, { series }]) => series.get(prefixes.time + timeParts[0]));
      const all = key === prefixes.time ? timed.map(([run, { name }]) => [key + run, `${of}, ${name}`]) : [[key, of]];
      return all.map(([each, text]) => {
        kept.add(each!);
        return chartOf(each!, text!).root;
      });
    });
    const known = [...grids.children].find((child) => child.firstChild!.textContent === title);
    const heading = [element("summary", {}, title), element("div", { class: "grid" })];
    const section = known ?? element("details", closed ? {} : { open: "" }, ...heading);
    place(section.lastElementChild!, roots);
    return section;
  });
  for (const [key, chart] of charts) {
    if (kept.has(key)) continue;
    chart.forget();
    charts.delete(key);
    seen.unobserve(chart.root);
  }
  place(grids, sections);
  redraw();
}

function chartOf(key: string, title: string): Chart {
  const known = charts.get(key);
  if (known) return known;
  const chart = new Chart(title, key.startsWith(prefixes.time), shared);
  chart.point(step);
  charts.set(key, chart);
  seen.observe(chart.root);
  return chart;
}

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    for (const chart of charts.values()) if (chart.root === target) chart.see(isIntersecting);
  }
  schedule();
});

function redraw(): void {
  for (const chart of charts.values()) stale.add(chart);
  schedule();
}

function schedule(): void {
  if (!isPainting) requestAnimationFrame(paint);
  isPainting = true;
}

function paint(): void {
  isPainting = false;
  const marks = shownAlarms().map(({ step: at, rule }) => ({ step: at, text: visible(rule) }));
  for (const [key, chart] of charts) {
    if (chart.isVisible && stale.delete(chart)) chart.draw(linesOf(key), marks, rangeOf());
  }
}

function linesOf(key: string): Line[] {
  if (key.startsWith(prefixes.time)) {
    const run = runs.get(key.slice(prefixes.time.length));
    return timeParts.flatMap((name, style) => {
      const series = run?.series.get(prefixes.time + name);
      return series ? [{ name, short: name, style, series }] : [];
    });
  }
  const isLanes = key === prefixes.engines;
  return shownRuns().flatMap(({ name, series: all }, style) => {
    const metrics = isLanes ? all.names.filter((metric) => metric.startsWith(key)) : [key];
    return metrics.flatMap((metric) => {
      const [series, suffix] = [all.get(metric), isLanes ? ` ${metric}` : ""];
      return series ? [{ name: name + suffix, short: letterOf(style) + suffix, style, series }] : [];
    });
  });
}

const rangeOf = () => state.range ?? wholeRange();

function wholeRange() {
  const ends = shownRuns().flatMap(({ series }) => series.ends);
  const to = Math.max(1, ...ends);
  return { from: Math.min(to - 1, ...ends), to };
}

function inspectStep(): void {
  const [directory] = state.shown;
  if (directory) tell({ type: "inspect", directory, step: step ?? undefined });
}

build();
onMessage(receive);
// The theme is in the document's own variables.
new MutationObserver(() => {
  for (const chart of charts.values()) chart.forget();
  redraw();
}).observe(document.documentElement, { attributes: true, attributeFilter: ["style", "class"] });
window.addEventListener("resize", redraw);
tell({ type: "ready" });
