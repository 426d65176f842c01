import type { RunState } from "./fold.ts";

const bars = "▁▂▃▄▅▆▇█";

/** Values as a line of at most `width` bars (means of runs), scaled from 0 to the larger of 1 and their maximum. */
export function sparkline(values: number[], width = 40): string {
  if (values.length === 0) return "";
  const size = Math.max(1, Math.ceil(values.length / width));
  const top = Math.max(1, ...values);
  let line = "";
  for (let start = 0; start < values.length; start += size) {
    const part = values.slice(start, start + size);
    const mean = part.reduce((total, value) => total + value, 0) / part.length;
    const level = Math.round((Math.max(0, mean) / top) * (bars.length - 1));
    line += bars[level];
  }
  return line;
}

const size = { width: 640, height: 320, left: 48, right: 16, top: 28, bottom: 40 };

/** The learning curve as a self-contained SVG: training reward a step, and held-out accuracy, greedy and sampled. */
export function curveSvg(run: RunState): string {
  const lastStep = Math.max(1, run.step);
  const reward = run.steps.map((event): Point => [event.step, event.metrics.reward ?? Number.NaN]);
  const values = [...reward.map(([, value]) => value), 0, 1].filter(Number.isFinite);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (step: number) => size.left + (step / lastStep) * (size.width - size.left - size.right);
  const y = (value: number) => size.height - size.bottom - ((value - low) / (high - low)) * plotHeight;
  const path = (points: Point[]) =>
    points
      .filter(([, value]) => Number.isFinite(value))
      .map(([step, value], index) => `${index === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`)
      .join(" ");
  const series = [
    { name: "training reward", color: "#9aa7b5", points: reward },
    { name: "held out, greedy", color: "#1b7f5c", points: evalPoints(run, "accuracy") },
    { name: "held out, sampled", color: "#c2762b", points: evalPoints(run, "sampled") },
  ].filter((line) => line.points.length > 0);
  const ticks = [low, (low + high) / 2, high].map(
    (value) =>
      `<line x1="${size.left}" x2="${size.width - size.right}" y1="${y(value)}" y2="${y(value)}" stroke="#e3e7ec"/>` +
      `<text x="${size.left - 8}" y="${y(value) + 4}" text-anchor="end">${value.toFixed(2)}</text>`,
  );
  const lines = series.map(
    ({ color, points }) => `<path d="${path(points)}" fill="none" stroke="${color}" stroke-width="2"/>`,
  );
  const legend = series.map(
    ({ name, color }, index) =>
      `<rect x="${size.left + index * 160}" y="8" width="12" height="4" fill="${color}"/>` +
      `<text x="${size.left + index * 160 + 18}" y="14">${name}</text>`,
  );
  const viewBox = `0 0 ${size.width} ${size.height}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${viewBox}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
${ticks.join("\n")}
${lines.join("\n")}
${legend.join("\n")}
<text x="${size.width / 2}" y="${size.height - 10}" text-anchor="middle">step (of ${lastStep})</text>
</svg>
`;
}

type Point = [step: number, value: number];

const plotHeight = size.height - size.top - size.bottom;

function evalPoints(run: RunState, metric: string): Point[] {
  return run.evals
    .filter((event) => event.metrics[metric] !== undefined)
    .map((event): Point => [event.step, event.metrics[metric]!]);
}
