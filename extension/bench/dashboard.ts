// How quick the dashboard is with 10 runs of 100,000 points a metric: the page alone, in Chromium without a GPU.
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { openAlone } from "../test/page-alone.ts";
import { findChromium } from "../test/vscode-web/setup.ts";

// This module is bundled into `dist/`.
const dist = fileURLToPath(new URL("../../dist", import.meta.url));
const [numRuns, numSteps, numZooms] = [10, 100_000, 60];

export async function benchDashboard(): Promise<void> {
  const args = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
  const browser = await chromium.launch({ executablePath: await findChromium(), args });
  try {
    const { page, complaints } = await openAlone(browser, dist, "dashboard-page");
    const first = await page.evaluate(showRuns, { numRuns, numSteps });
    const { frames, work } = await page.evaluate(zoom, numZooms);
    console.log(`${numRuns} runs of ${numSteps} steps, 14 metrics each, in ${await browser.version()}`);
    console.log(`first charts: ${first.toFixed(0)} ms after the last of the numbers arrived`);
    console.log(`frame while zooming: median ${quantile(frames, 0.5)} ms, p99 ${quantile(frames, 0.99)} ms`);
    console.log(`of it at work: median ${quantile(work, 0.5)} ms, p99 ${quantile(work, 0.99)} ms`);
    if (complaints.length > 0) console.log(complaints.join("\n"));
  } finally {
    await browser.close();
  }
}

function quantile(values: number[], share: number): string {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!.toFixed(1);
}

/** In the page: gives it the runs as the extension does; milliseconds until two frames after that. */
async function showRuns({ numRuns, numSteps }: { numRuns: number; numSteps: number }): Promise<number> {
  const names = ["reward", "reward_std", "response_length", "turns", "entropy", "policy_kl", "clip_ratio"];
  names.push("grad_norm", "logprob_gap_mean", "logprob_gap_max", "staleness_mean", "tokens_per_second");
  names.push("live_groups", "sync_seconds");
  const directories = Array.from({ length: numRuns }, (_, run) => `run-${run}`);
  const say = (message: unknown) => dispatchEvent(new MessageEvent("message", { data: message }));
  say({ type: "runs", runs: directories.map((directory) => ({ directory, name: directory })), shown: directories });
  for (const [run, directory] of directories.entries()) {
    const steps = Float64Array.from({ length: numSteps }, (_, at) => at + 1);
    const columns = names.map((name, metric) => {
      const waveOf = (step: number) => Math.sin(step / (3000 + 200 * run)) + metric + Math.random();
      return { name, values: steps.map(waveOf) };
    });
    const status = { directory, label: "completed", standing: "completed", alarms: [] };
    say({ type: "status", status });
    say({ type: "rows", directory, from: 0, tables: [{ table: "", steps, columns }] });
  }
  const begun = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  while (document.querySelectorAll("canvas").length === 0) await frame();
  await frame();
  return performance.now() - begun;
}

/** In the page: presses + and − in a chart, one a frame; milliseconds from frame to frame, and of them at work. */
async function zoom(count: number): Promise<{ frames: number[]; work: number[] }> {
  const chart = document.querySelector<HTMLElement>('[role="slider"]')!;
  const frame = () => new Promise<number>((resolve) => requestAnimationFrame(resolve));
  const [frames, work]: number[][] = [[], []];
  let before = await frame();
  for (let index = 0; index < count; index++) {
    const key = index % 12 < 6 ? "+" : "-";
    chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    // The page's own frame callback was registered first: this one comes after its painting.
    const at = await frame();
    work!.push(performance.now() - at);
    frames!.push(at - before);
    before = at;
  }
  return { frames: frames!, work: work! };
}
