import cliProgress from "cli-progress";
import { colorsFor } from "../colors.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { sparkline } from "./curve.ts";
import type { TimedEvent } from "./events.ts";
import type { RunState } from "./fold.ts";
import type { RunSummary } from "./summary.ts";

/** Shows events as they come: a bar on a terminal, plain lines elsewhere, the events themselves with `--json`. */
export class TerminalReporter {
  private readonly json: boolean;
  private readonly bar: cliProgress.SingleBar | null;
  private total = 0;
  private barShown = false;
  private lastLineAt = 0;
  private note = "";

  constructor({ json }: { json: boolean }) {
    this.json = json;
    const format = `${colorsFor(process.stderr).green("{bar}")} step {value}/{total}  {note}`;
    this.bar =
      !json && process.stderr.isTTY
        ? new cliProgress.SingleBar(
            // Signals are the run's: it stops the bar when it ends.
            { format, hideCursor: true, gracefulExit: false, stream: process.stderr },
            cliProgress.Presets.shades_grey,
          )
        : null;
  }

  show(event: TimedEvent): void {
    if (this.json) {
      process.stdout.write(`${JSON.stringify(event)}\n`);
      return;
    }
    switch (event.type) {
      case "started":
        this.total = event.totalSteps ?? 0;
        this.line(`run ${event.runId}`);
        break;
      case "resumed":
        this.total = event.totalSteps ?? 0;
        this.line(`resuming at ${event.fromStep} of ${event.totalSteps ?? "?"}`);
        break;
      case "arithmetic":
        this.line(event.line);
        break;
      case "phase":
        if (event.state === "end")
          this.line(`${event.name}: ${(event.seconds ?? 0).toFixed(1)} s${suffix(event.detail)}`);
        break;
      case "step":
        this.step(event.step, event.metrics);
        break;
      case "sample":
        this.line(`sample of step ${event.step}, reward ${fixed(event.reward)}: ${quoted(event)}`);
        break;
      case "step_skipped":
        this.line(
          colorsFor(process.stdout).yellow(`step ${event.step} changed nothing (${event.reason}): ${event.detail}`),
        );
        break;
      case "eval":
        this.line(evalLine(event.step, event.metrics));
        break;
      case "warning":
        this.line(colorsFor(process.stdout).yellow(`warning: ${event.message}`));
        break;
      case "ended":
        this.stop();
        break;
      default:
    }
  }

  /** The last lines of a run. */
  finish(summary: RunSummary, { steps, evals }: RunState, directory: string, next: string[]): void {
    this.stop();
    if (this.json) {
      process.stdout.write(`${JSON.stringify({ type: "summary", directory, ...summary })}\n`);
      return;
    }
    const { before, after } = summary.eval;
    const out = [""];
    if (before && after) {
      const accuracies = evals.flatMap((event) => event.metrics.accuracy ?? []);
      const gain = `${percent(before.accuracy)} → ${percent(after.accuracy)}`;
      out.push(`held-out accuracy ${sparkline(accuracies)}  ${colorsFor(process.stdout).bold(gain)}`);
    }
    const rewards = steps.flatMap((event) => event.metrics.reward ?? []);
    if (rewards.length > 1)
      out.push(`training reward   ${sparkline(rewards)}  ${fixed(rewards[0])} → ${fixed(rewards.at(-1))}`);
    const where = displayPath(directory);
    out.push(`${summary.state}: ${summary.steps} steps in ${summary.seconds.toFixed(0)} s, run directory ${where}`);
    if (next.length > 0) out.push("try next:", ...next.map((command) => `  ${command}`));
    process.stdout.write(`${out.join("\n")}\n`);
  }

  private step(step: number, metrics: Record<string, number>): void {
    this.note = stepNote(metrics);
    if (this.bar) {
      if (!this.barShown) this.bar.start(Math.max(this.total, step), step, { note: this.note });
      this.barShown = true;
      this.bar.update(step, { note: this.note });
      return;
    }
    // Without a terminal: the first step, the last, and one line every five seconds.
    const now = Date.now();
    if (step !== 1 && step !== this.total && now - this.lastLineAt < 5000) return;
    this.lastLineAt = now;
    this.line(`step ${step}/${this.total || "?"}  ${this.note}`);
  }

  private line(text: string): void {
    if (this.barShown) {
      process.stderr.write("\r\x1b[K");
      process.stdout.write(`${text}\n`);
      this.bar?.render();
    } else process.stdout.write(`${text}\n`);
  }

  /** Gives the terminal back. */
  stop(): void {
    if (this.barShown) {
      // It goes back to where it saved the cursor, which was before the lines above it came: save it here.
      process.stderr.write("\x1b7");
      this.bar?.stop();
    }
    this.barShown = false;
  }
}

function stepNote(metrics: Record<string, number>): string {
  const parts = [
    ["reward", metrics.reward],
    ["turns", metrics.turns === 1 ? undefined : metrics.turns],
    ["loss", metrics.loss],
    ["entropy", metrics.entropy],
    ["gap", metrics.logprob_gap_mean],
    ["staleness", metrics.staleness_mean],
  ] as const;
  const shown = parts.filter(([, value]) => value !== undefined).map(([name, value]) => `${name} ${fixed(value)}`);
  return shown.join("  ");
}

/** On one line, and without anything that moves a cursor or turns text around. */
function quoted({ prompt, reply }: { prompt: string; reply: string }): string {
  const hidden = (text: string) => `\\u{${text.codePointAt(0)!.toString(16)}}`;
  const [asked, said] = [prompt, reply].map((text) => JSON.stringify(text).replace(/\p{C}/gu, hidden));
  return `${asked} → ${said}`;
}

function evalLine(step: number, metrics: Record<string, number>): string {
  const sampled = metrics.sampled === undefined ? "" : `, sampled ${percent(metrics.sampled)}`;
  return `eval at step ${step}: held-out accuracy ${percent(metrics.accuracy ?? Number.NaN)}${sampled}`;
}

function suffix(detail: string | undefined): string {
  return detail ? ` (${detail})` : "";
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)}%`;
}

function fixed(value: number | undefined): string {
  if (value === undefined) return "-";
  return Math.abs(value) < 0.001 && value !== 0 ? value.toExponential(1) : value.toFixed(3);
}
