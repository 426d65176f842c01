import type { RunState } from "./fold.ts";
import { visible } from "./views/lines.ts";

type Point = [step: number, value: number];

interface Series {
  name: string;
  color?: string;
  points: Point[];
}

const bars = "▁▂▃▄▅▆▇█";

/** Values as a line of at most `width` bars (means of runs), scaled from `low` to `high`. */
export function sparkline(values: number[], width = 40, low = 0, high = values.reduce((a, b) => Math.max(a, b), 1)) {
  const size = Math.max(1, Math.ceil(values.length / width));
  let line = "";
  for (let start = 0; start < values.length; start += size) {
    const part = values.slice(start, start + size);
    const mean = part.reduce((total, value) => total + value, 0) / part.length;
    line += bars[Math.round((Math.max(0, mean - low) / (high - low || 1)) * (bars.length - 1))];
  }
  return line;
}

/** One metric of each step or eval that has it. */
export function pointsOf(events: RunState["steps"] | RunState["evals"], metric: string): Point[] {
  const points = events.map(({ step, metrics }): Point => [step, metrics[metric] ?? Number.NaN]);
  return points.filter(([, value]) => Number.isFinite(value));
}

/** The learning curve: training reward a step, and held-out accuracy, greedy and sampled. */
export function curveSvg(run: RunState): string {
  const series = [
    { name: "training reward", color: "#9aa7b5", points: pointsOf(run.steps, "reward") },
    { name: "held out, greedy", color: "#1b7f5c", points: pointsOf(run.evals, "accuracy") },
    { name: "held out, sampled", color: "#c2762b", points: pointsOf(run.evals, "sampled") },
  ];
  return chartSvg(series, run.step, [0, 1]);
}

const size = { width: 640, height: 320, left: 64, right: 16, top: 28, bottom: 40 };

/** Lines over steps as a self-contained SVG, whose scale takes in `shown` too. */
export function chartSvg(series: Series[], steps: number, shown: number[] = []): string {
  const lines = series.filter(({ points }) => points.length > 0);
  const lastStep = Math.max(1, steps);
  const values = [...lines.flatMap(({ points }) => points.map(([, value]) => value)), ...shown];
  const low = values.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  const high = values.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
  const [width, height] = [size.width - size.left - size.right, size.height - size.top - size.bottom];
  const x = (step: number) => (size.left + (step / lastStep) * width).toFixed(1);
  const y = (value: number) => (size.height - size.bottom - ((value - low) / (high - low || 1)) * height).toFixed(1);
  const ticks = [low, (low + high) / 2, high].map(
    (value) =>
      `<line x1="${size.left}" x2="${size.width - size.right}" y1="${y(value)}" y2="${y(value)}" stroke="#e3e7ec"/>` +
      `<text x="${size.left - 8}" y="${y(value)}" dy="4" text-anchor="end">${Number(value.toPrecision(3))}</text>`,
  );
  const drawn = lines.map(({ name, color = "#1b7f5c", points }, index) => {
    const path = points.map(([step, value]) => `${x(step)} ${y(value)}`).join("L");
    const at = size.left + index * 160;
    return (
      `<path d="M${path}h0" fill="none" stroke="${color}" stroke-width="2" stroke-linecap="round"/>` +
      `<rect x="${at}" y="8" width="12" height="4" fill="${color}"/>` +
      `<text x="${at + 18}" y="14">${escapeHtml(name)}</text>`
    );
  });
  const viewBox = `0 0 ${size.width} ${size.height}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${viewBox}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
${[...ticks, ...drawn].join("\n")}
<text x="${size.width / 2}" y="${size.height - 10}" text-anchor="middle">step (of ${lastStep})</text>
</svg>
`;
}

/** Text, as HTML and SVG show it. */
export function escapeHtml(text: string): string {
  return visible(text).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
