import { pointsOf, sparkline } from "../curve.ts";
import type { RunState } from "../fold.ts";
import { eventLine, fixed, visible } from "./lines.ts";

const valuesOf = (...of: Parameters<typeof pointsOf>) => pointsOf(...of).map(([, value]) => value);

/** What `watch` shows of a run: a line a chart, `width` columns wide, its range, its last value; then alarms. */
export function watchScreen({ runId, state, step, totalSteps, steps, evals, health }: RunState, width: number): string {
  const charts = {
    reward: valuesOf(steps, "reward"),
    entropy: valuesOf(steps, "entropy"),
    "log-probability gap": valuesOf(steps, "logprob_gap_mean"),
    "held-out accuracy": valuesOf(evals, "accuracy"),
    "seconds a step": steps.slice(1).map(({ time }, index) => time - steps[index]!.time),
  };
  const drawn = Object.entries(charts).filter(([, values]) => values.length > 0);
  const lines = drawn.map(([name, values]) => {
    const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    const line = sparkline(values, Math.max(10, width - 56), low, high);
    return `${name.padEnd(21)}${line}  ${fixed(low)} to ${fixed(high)}, now ${fixed(values.at(-1))}`;
  });
  return [
    visible(`run ${runId}  ${state}  step ${step}/${totalSteps ?? "?"}`),
    "",
    ...lines,
    ...health.slice(-3).map(eventLine),
  ].join("\n");
}
