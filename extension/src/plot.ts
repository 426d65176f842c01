/// <reference lib="dom" />
// One chart: a canvas of uPlot's, the same in words, and its numbers as a table. It keeps no data: it is told what to
// draw between which steps.
import uPlot from "uplot";
import { button, element, tableOf } from "./controls.ts";
import { type Drawn, downsample, means, positions, type Range } from "./downsample.ts";
import { firstAbove, firstAtLeast, type Series } from "./series.ts";

export interface Line {
  name: string;
  /** In few letters: stands at the line's end. */
  short: string;
  /** Which colour and dash pattern. */
  style: number;
  series: Series;
}

/** Something that happened at a step. */
export interface Mark {
  step: number;
  text: string;
}

/** What a user does in one chart happens in all. */
export interface Shared {
  /** Null: to all steps. */
  zoom(range: Range | null): void;
  zoomBy(factor: number): void;
  panBy(share: number): void;
  point(step: number | null): void;
}

const height = 170;
const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2]];
const numColors = 6;
const mostRows = 200;
/** Drawn as points too, while they are few. */
const mostPoints = 40;

export class Chart {
  readonly root: HTMLElement;
  /** Only what can be seen is drawn. */
  isVisible = false;
  private readonly title: string;
  private readonly isStack: boolean;
  private readonly shared: Shared;
  private readonly box: HTMLElement;
  private readonly summary = element("p", { class: "note" });
  private readonly readout = element("p", { class: "readout", "aria-hidden": "true" });
  private readonly table: HTMLElement;
  private plot: uPlot | null = null;
  private lines: Line[] = [];
  private marks: Mark[] = [];
  private range: Range = { from: 0, to: 1 };
  private step: number | null = null;

  constructor(title: string, isStack: boolean, shared: Shared) {
    [this.title, this.isStack, this.shared] = [title, isStack, shared];
    // Its arrow keys move the cross-hair, whose values a screen reader says: a slider over the steps.
    const values = { "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": "0" };
    const slider = { class: "plot", tabindex: "0", role: "slider", "aria-label": `${title}, by step`, ...values };
    this.box = element("div", slider);
    this.box.addEventListener("keydown", (event) => this.press(event));
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}: table` };
    this.table = element("div", { ...region, hidden: "" });
    const toggle = button("Table", () => this.toggleTable(toggle), `Table of ${title}`);
    toggle.setAttribute("aria-expanded", "false");
    const caption = element("figcaption", { class: "bar" }, element("span", {}, title), toggle);
    this.root = element("figure", {}, caption, this.box, this.readout, this.summary, this.table);
  }

  draw(lines: Line[], marks: Mark[], range: Range): void {
    const keyOf = (of: Line[]) => of.map(({ name, style }) => `${style} ${name}`).join("\n");
    const width = Math.max(100, this.box.clientWidth);
    if (keyOf(lines) !== keyOf(this.lines) || this.plot?.width !== width) this.forget();
    Object.assign(this, { lines, marks, range });
    this.plot ??= this.create(width);
    const { plot } = this;
    const columns = Math.round(plot.bbox.width / uPlot.pxRatio) || width;
    for (const [index, { style, series }] of lines.entries()) {
      // A line that fills the columns has no room for dashes, which take long to paint: its letter tells it.
      const isDense = placesIn(series, range).count > columns;
      const looks = { dash: isDense ? [] : dashes[style % dashes.length]!, width: isDense ? 1 : 1.5 };
      Object.assign(plot.series[index + 1]!, looks);
    }
    const drawn = this.reduce(columns);
    // At once: the cross-hair is placed on the new scale.
    plot.batch(() => plot.setData([positions(range, columns), ...drawn] as uPlot.AlignedData));
    this.describe(drawn);
    if (!this.table.hidden) this.fillTable();
  }

  /** The theme has changed, or it is not shown any more. */
  forget(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  see(isVisible: boolean): void {
    this.isVisible = isVisible;
    this.point(this.step);
  }

  /** Where the cross-hair stands, in all charts. */
  point(step: number | null): void {
    this.step = step;
    if (!this.plot || !this.isVisible) return;
    this.plot.setCursor({ left: step === null ? -10 : this.plot.valToPos(step, "x"), top: 0 }, false);
    const { from, to } = this.range;
    const said = step === null ? "" : [`step ${step}`, ...this.valuesAt(step)].join(" · ");
    this.readout.textContent = said;
    const aria = { valuemin: from, valuemax: to, valuenow: step ?? from, valuetext: said || this.summary.textContent! };
    for (const [name, value] of Object.entries(aria)) this.box.setAttribute(`aria-${name}`, String(value));
  }

  private create(width: number): uPlot {
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--text"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
    const faint = ({ style }: Line) => `color-mix(in srgb, ${color(`--c${style % numColors}`)} 25%, transparent)`;
    const isSparse = (_: uPlot, line: number) => {
      return !this.isStack && placesIn(this.lines[line - 1]!.series, this.range).count <= mostPoints;
    };
    const points = { show: isSparse, filter: pointsOf as unknown as uPlot.Series.Points.Filter };
    const series = this.lines.map((line, index): uPlot.Series => {
      const fill = this.isStack && index === 0 ? faint(line) : undefined;
      return { stroke: color(`--c${line.style % numColors}`), points: { ...points, size: 5 }, fill };
    });
    const bands = this.lines.map((line, index): uPlot.Band => ({ series: [index + 1, index], fill: faint(line) }));
    // Of the mouse alone: uPlot says the same of each drawing, by the pixel, whatever step that now is.
    const follow: uPlot.Cursor.MouseListenerFactory = (plot, _, move) => (event) => {
      move(event);
      this.shared.point(stepAt(plot));
      return null;
    };
    const options: uPlot.Options = {
      ...{ width, height, legend: { show: false } },
      scales: { x: { time: false, range: () => [this.range.from, this.range.to] }, y: { range: heights } },
      axes: [
        { ...axis, size: 24, gap: 2 },
        { ...axis, size: 60, values: (_, ticks) => ticks.map(shortNumber) },
      ],
      series: [{}, ...series],
      bands: this.isStack ? bands.slice(1) : [],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => this.zoomOut(), mousemove: follow, mouseleave: follow },
      },
      hooks: {
        draw: [(plot) => this.annotate(plot, color("--text"))],
        setSelect: [(plot) => this.select(plot)],
      },
    };
    return new uPlot(options, [[], ...this.lines.map(() => [])] as uPlot.AlignedData, this.box);
  }

  private reduce(columns: number): Drawn[][] {
    const to = this.isStack ? means : downsample;
    const drawn = this.lines.map(({ series }) => to(series, this.range, columns));
    if (!this.isStack) return drawn;
    const below = new Float64Array(drawn[0]?.length ?? 0);
    for (const line of drawn) {
      for (const [at, value] of line.entries()) if (value != null) line[at] = below[at] = below[at]! + value;
    }
    return drawn;
  }

  private describe(drawn: Drawn[][]): void {
    const said = this.lines.map(({ short, series }, index) => {
      const { start, end } = placesIn(series, this.range);
      const last = shortNumber(series.values.subarray(start, end).findLast(Number.isFinite) ?? Number.NaN);
      if (this.isStack) return `${short} ${last}`;
      const seen = drawn[index]!.filter((value) => typeof value === "number");
      if (seen.length === 0) return `${short}: nothing here`;
      const least = seen.reduce((a, b) => Math.min(a, b));
      return `${short}: ${shortNumber(least)} to ${shortNumber(seen.reduce((a, b) => Math.max(a, b)))}, last ${last}`;
    });
    this.summary.textContent = (this.isStack ? "From the bottom, last: " : "") + said.join(" · ");
    this.point(this.step);
  }

  /** Of each line, else of the last step before that it has one at; and what happened there. */
  private valuesAt(step: number): string[] {
    const values = this.lines.flatMap(({ short, series: { steps, values } }) => {
      const at = firstAbove(steps, step) - 1;
      if (at < 0) return [];
      return `${short} ${shortNumber(values[at]!)}${steps[at] === step ? "" : ` (of step ${steps[at]})`}`;
    });
    return [...values, ...this.marks.flatMap((mark) => (mark.step === step ? mark.text : []))];
  }

  /** Each line's letter at its end; of each mark a dashed line and a flag, with its text where there is room. */
  private annotate({ ctx, bbox, valToPos, data }: uPlot, color: string): void {
    const ratio = uPlot.pxRatio;
    ctx.save();
    Object.assign(ctx, { strokeStyle: color, fillStyle: color, lineWidth: ratio, font: `${11 * ratio}px sans-serif` });
    Object.assign(ctx, { textAlign: "left", textBaseline: "alphabetic" });
    for (const [index, { short }] of this.isStack ? [] : this.lines.entries()) {
      const at = (data[index + 1] as Drawn[]).findLastIndex((value) => typeof value === "number");
      if (at < 0) continue;
      const [left, top] = [valToPos(data[0][at]!, "x", true), valToPos(data[index + 1]![at]!, "y", true)];
      ctx.fillText(short[0]!, Math.min(left + 3 * ratio, bbox.left + bbox.width - 8 * ratio), top - 3 * ratio);
    }
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    let [free, before] = [0, -1];
    for (const { step, text } of this.marks) {
      if (step < this.range.from || step > this.range.to) continue;
      const left = Math.round(valToPos(step, "x", true));
      if (left === before) continue;
      before = left;
      ctx.stroke(new Path2D(`M${left} ${bbox.top}v${bbox.height}`));
      ctx.fillRect(left, bbox.top, 5 * ratio, 5 * ratio);
      if (left < free) continue;
      ctx.fillText(text, left + 7 * ratio, bbox.top + 9 * ratio);
      free = left + ctx.measureText(text).width + 12 * ratio;
    }
    ctx.restore();
  }

  private select(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = { from: plot.posToVal(left, "x"), to: plot.posToVal(left + width, "x") };
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.shared.zoom(range);
  }

  private zoomOut(): null {
    this.shared.zoom(null);
    return null;
  }

  private press(event: KeyboardEvent): void {
    const { shared, step } = this;
    const [from, to] = [Math.ceil(this.range.from), Math.floor(this.range.to)];
    const stride = Math.max(1, Math.round((to - from) / 100));
    const move = (by: number) => {
      shared.point(Math.min(to, Math.max(from, (step ?? Math.round((from + to) / 2)) + by)));
    };
    const actions: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? shared.panBy(-0.25) : move(-stride)),
      ArrowRight: () => (event.shiftKey ? shared.panBy(0.25) : move(stride)),
      Home: () => shared.point(from),
      End: () => shared.point(to),
      "+": () => shared.zoomBy(0.5),
      "-": () => shared.zoomBy(2),
      "0": () => shared.zoom(null),
      Escape: () => shared.point(null),
    };
    // With these it is the editor's.
    if (!actions[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]!();
  }

  private toggleTable(toggle: HTMLElement): void {
    this.table.hidden = !this.table.hidden;
    toggle.setAttribute("aria-expanded", String(!this.table.hidden));
    if (!this.table.hidden) this.fillTable();
  }

  /** The range's steps, evenly thinned where they are too many. */
  private fillTable(): void {
    const within = this.lines.map(({ series }) => {
      const { start, end } = placesIn(series, this.range);
      return series.steps.subarray(start, end);
    });
    // Of each line first: all of 10 runs' steps take seconds.
    const all = [...new Set(within.flatMap((steps) => [...thinned(steps)]))].sort((one, other) => one - other);
    const steps = thinned(all);
    const rows = steps.map((step) => [
      String(step),
      ...this.lines.map(({ series }) => {
        const at = firstAtLeast(series.steps, step);
        return series.steps[at] === step && Number.isFinite(series.values[at]!) ? String(series.values[at]) : "–";
      }),
    ]);
    const isThinned = [all, ...within].some(({ length }) => length > steps.length);
    const note = isThinned ? ` ${steps.length} of its steps: zoom in for the others.` : "";
    this.table.replaceChildren(tableOf(`${this.title}.${note}`, ["step", ...this.lines.map(({ name }) => name)], rows));
  }
}

/** A line's colour and dashes as a legend shows them. */
export function swatch(style: number): HTMLElement {
  return element("span", { class: `swatch c${style % numColors} d${style % dashes.length}`, "aria-hidden": "true" });
}

function placesIn({ steps }: Series, { from, to }: Range) {
  const [start, end] = [firstAtLeast(steps, from), firstAbove(steps, to)];
  return { start, end, count: end - start };
}

/** So many of them as a table has rows, evenly. */
function thinned<Numbers extends number[] | Float64Array>(all: Numbers): Numbers {
  const stride = Math.ceil(all.length / mostRows);
  return all.filter((_, at) => at % stride === 0) as Numbers;
}

function shortNumber(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

function stepAt({ cursor: { left = -1 }, posToVal }: uPlot): number | null {
  return left < 0 ? null : Math.round(posToVal(left, "x"));
}

/** uPlot's own, but for a line that is flat: that stands in the middle. */
function heights(_: uPlot, least: number, most: number): [number, number] {
  if (least !== most) return uPlot.rangeNum(least, most, 0.1, true) as [number, number];
  const room = Math.abs(least) || 1;
  return [least - room, most + room];
}

/** Places of the points to be drawn as such. */
function pointsOf(plot: uPlot, line: number, isShown: boolean): number[] | null {
  if (!isShown) return null;
  return (plot.data[line] as Drawn[]).flatMap((value, at) => (typeof value === "number" ? at : []));
}
