import { chartSvg, curveSvg, escapeHtml, pointsOf } from "../curve.ts";
import type { TimedEvent } from "../events.ts";
import { applyEvent, emptyRun } from "../fold.ts";
import { summarize } from "../summary.ts";
import { eventLine } from "./lines.ts";

/** What is in charts or tables already, and samples, which quote prompts. */
const unlisted: ReadonlySet<TimedEvent["type"]> = new Set(["step", "group", "funnel", "sync", "sample"] as const);

/** One page that needs nothing else and runs nothing: figures, charts, events, the recipe; `samples`: rollouts too. */
export function reportHtml(events: Iterable<TimedEvent>, recipe: string, samples: boolean): string {
  const run = emptyRun();
  const listed: string[] = [];
  const sampled: string[] = [];
  for (const event of events) {
    applyEvent(run, event);
    if (!unlisted.has(event.type)) listed.push(timedLine(event));
    if (event.type === "sample") sampled.push(timedLine(event));
  }
  const text = (lines: string[]) => `<pre>${escapeHtml(lines.join("\n"))}</pre>`;
  const names = [...new Set(run.steps.flatMap(({ metrics }) => Object.keys(metrics)))].sort();
  const charts = names.map((name) => chartSvg([{ name, points: pointsOf(run.steps, name) }], run.step));
  const parts = {
    Summary: text([JSON.stringify(summarize(run), null, 2)]),
    Learning: curveSvg(run),
    Alarms: run.health.length > 0 ? text(run.health.map(timedLine)) : "none",
    Metrics: `<div class="charts">${charts.join("")}</div>`,
    Events: text(listed),
    ...(samples && { Rollouts: text(sampled) }),
    Recipe: text([recipe]),
  };
  const sections = Object.entries(parts).map(([title, body]) => `<h2>${title}</h2>\n${body}`);
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${escapeHtml(run.runId)}</title>
<style>
body { font: 14px sans-serif; max-width: 1300px; margin: 2em auto; padding: 0 1em }
pre { background: #f4f6f8; padding: 1em; overflow: auto; max-height: 30em }
svg { max-width: 640px } .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(400px, 1fr)) }
</style>
<h1>${escapeHtml(run.runId)}</h1>
${sections.join("\n")}
</html>
`;
}

/** When, and what: a line of `logs`. */
export function timedLine(event: TimedEvent): string {
  return `${new Date(event.time * 1000).toISOString().slice(0, 19)} ${eventLine(event)}`;
}
