import { join } from "node:path";
import { sum } from "../algorithms/advantages/estimator.ts";
import { replaceFile } from "../files.ts";
import { curveSvg } from "./curve.ts";
import type { RunState } from "./fold.ts";
import { bindingOf } from "./step-time.ts";

/** `runs/<id>/summary.json`, format 1. */
export type RunSummary = ReturnType<typeof summarize>;

/** The best checkpoint on the disk by its eval, with the version that was evaluated, which is the one it holds. */
export interface BestCheckpoint {
  step: number;
  policy_version: number;
  metric: string;
  value: number;
}

export function summarize(run: RunState, best: BestCheckpoint | null = null) {
  const metric = (name: string) => run.steps.map((step) => step.metrics[name]).filter((value) => value !== undefined);
  const rewards = metric("reward");
  const gaps = metric("logprob_gap_mean");
  const tokens = metric("tokens_trained");
  const seconds = sumByName(run.steps.map((step) => step.seconds ?? {}));
  return {
    format: 1 as const,
    run: run.runId,
    state: run.state,
    failure: run.failure,
    steps: run.step,
    total_steps: run.totalSteps,
    steps_skipped: run.skipped.length,
    policy_version: run.policyVersion,
    seconds: run.seconds,
    eval: {
      before: evalSummary(run.evals.find((event) => event.step === 0)),
      after: evalSummary(run.evals.findLast((event) => event.step > 0)),
    },
    best,
    reward: { first: rewards[0] ?? null, last: rewards.at(-1) ?? null },
    // Of trained tokens: |log-probability by trainer - by sampler|, staleness included.
    logprob_gap: {
      // Over tokens: a step's mean counts as often as the step has tokens.
      mean: gaps.length > 0 ? sum(gaps.map((gap, index) => gap * tokens[index]!)) / sum(tokens) : null,
      max: metric("logprob_gap_max").reduce<number | null>((most, gap) => Math.max(most ?? 0, gap), null),
    },
    tokens_trained: sum(tokens),
    groups: {
      trained: sum(run.tallies.map(({ trained }) => trained)),
      dropped: sumByName(run.tallies.map(({ dropped }) => dropped)),
      requeued: sum(run.tallies.map(({ requeued }) => requeued)),
    },
    tokens: {
      sampled: sum(run.funnels.map(({ sampled }) => sampled)),
      trained: sum(run.funnels.map(({ trained }) => trained)),
      masked: sumByName(run.funnels.map(({ masked }) => masked)),
      dropped: sumByName(run.funnels.map(({ dropped }) => dropped)),
    },
    health: run.health,
    // Where the seconds went, by phase; then those of all steps, and what more of would have made them shorter.
    phases: run.phases,
    step_seconds: seconds,
    binding: run.steps.some((step) => step.seconds) ? bindingOf(seconds) : null,
  };
}

function sumByName(records: Record<string, number>[]): Record<string, number> {
  const total: Record<string, number> = {};
  for (const [name, value] of records.flatMap(Object.entries)) total[name] = (total[name] ?? 0) + value;
  return total;
}

/** Mean scores: greedy (the recipe's eval settings), and at the training temperature; of sft nats a token. */
function evalSummary(event: RunState["evals"][number] | undefined) {
  if (!event) return null;
  const { accuracy = Number.NaN, sampled = null, loss = null } = event.metrics;
  return { step: event.step, accuracy, sampled, loss };
}

/** Writes `summary.json` and `curve.svg` into the run's directory. */
export function writeSummary(runDirectory: string, run: RunState, best: BestCheckpoint | null = null): void {
  replaceFile(join(runDirectory, "summary.json"), `${JSON.stringify(summarize(run, best), null, 2)}\n`);
  replaceFile(join(runDirectory, "curve.svg"), curveSvg(run));
}
