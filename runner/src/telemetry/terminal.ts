import cliProgress from "cli-progress";
import { colorsFor } from "../colors.ts";
import { displayPath } from "../recipe/diagnostic.ts";
import { sparkline } from "./curve.ts";
import type { TimedEvent } from "./events.ts";
import type { RunState } from "./fold.ts";
import type { RunSummary } from "./summary.ts";
import { eventLine, fixed, percent, stepNote } from "./views/lines.ts";

/** What `logs` has, and nobody at a run's terminal needs. */
const hidden = ["group", "rollout_failed", "funnel", "sync", "checkpoint", "log", "failed", "begin"];
const troubles = ["step_skipped", "health", "warning", "died"];

/** Shows events as they come: a bar on a terminal, plain lines elsewhere, the events themselves with `--json`. */
export class TerminalReporter {
  /** Of the run, in steps; 0: not known. */
  total = 0;
  private readonly json: boolean;
  private readonly bar: cliProgress.SingleBar | null;
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
    if (event.type === "started" || event.type === "resumed") this.total = event.totalSteps ?? 0;
    if (event.type === "ended") this.stop();
    else if (event.type === "step") this.step(event);
    else if (!isOne(hidden, event) && !(event.type === "engine" && event.state === "started")) {
      this.line(isOne(troubles, event) ? colorsFor(process.stdout).yellow(eventLine(event)) : eventLine(event));
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
    const { best } = summary;
    const out = [""];
    const metric = before?.loss == null ? "accuracy" : "loss";
    const shown = (name: string, value: number | null) => (/loss|perp/.test(name) ? fixed(value) : percent(value!));
    if (before && after) {
      const values = evals.flatMap((event) => event.metrics[metric] ?? []);
      const gain = `${shown(metric, before[metric])} → ${shown(metric, after[metric])}`;
      out.push(`held-out ${metric} ${sparkline(values)}  ${colorsFor(process.stdout).bold(gain)}`);
    }
    if (best) {
      const { step, policy_version: version } = best;
      out.push(`best checkpoint: step ${step}, version ${version}, ${best.metric} ${shown(best.metric, best.value)}`);
    }
    const rewards = steps.flatMap((event) => event.metrics.reward ?? []);
    if (rewards.length > 1)
      out.push(`training reward   ${sparkline(rewards)}  ${fixed(rewards[0])} → ${fixed(rewards.at(-1))}`);
    const { step: _, model: __, agent: ___, ...parts } = summary.step_seconds;
    const spent = Object.entries(parts).map(([part, seconds]) => `${part} ${seconds.toFixed(1)} s`);
    if (summary.binding) out.push(`time of its steps  ${spent.join(", ")}: bound by ${summary.binding}`);
    const where = displayPath(directory);
    out.push(`${summary.state}: ${summary.steps} steps in ${summary.seconds.toFixed(0)} s, run directory ${where}`);
    if (next.length > 0) out.push("try next:", ...next.map((command) => `  ${command}`));
    process.stdout.write(`${out.join("\n")}\n`);
  }

  private step({ step, metrics }: Extract<TimedEvent, { type: "step" }>): void {
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
    if (this.barShown) process.stderr.write("\r\x1b[K");
    process.stdout.write(`${text}\n`);
    if (this.barShown) this.bar?.render();
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

/** By its type, or by its state. */
function isOne(kinds: string[], event: TimedEvent): boolean {
  return kinds.includes(event.type) || ("state" in event && kinds.includes(event.state));
}
