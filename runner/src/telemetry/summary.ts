import { join } from "node:path";
import { replaceFile } from "../files.ts";
import { curveSvg } from "./curve.ts";
import { foldRun, type RunState } from "./fold.ts";
import { readEvents } from "./log.ts";

interface EvalSummary {
  step: number;
  /** Mean score, greedy (the recipe's eval settings). */
  accuracy: number;
  /** The same prompts at the training temperature. */
  sampled: number | null;
}

/** `runs/<id>/summary.json`, format 1. */
export interface RunSummary {
  format: 1;
  run: string;
  state: RunState["state"];
  failure: string | null;
  steps: number;
  total_steps: number | null;
  steps_skipped: number;
  policy_version: number;
  seconds: number;
  eval: { before: EvalSummary | null; after: EvalSummary | null };
  reward: { first: number | null; last: number | null };
  /** Mean over steps, and largest: |log-probability by trainer - by sampler| of trained tokens, staleness included. */
  logprob_gap: { mean: number | null; max: number | null };
  tokens_trained: number;
  groups: { trained: number; dropped: Record<string, number>; requeued: number };
  /** Where the seconds went, by phase. */
  phases: Record<string, number>;
}

export function summarize(run: RunState): RunSummary {
  const metric = (name: string) => run.steps.map((step) => step.metrics[name]).filter((value) => value !== undefined);
  const rewards = metric("reward");
  const gaps = metric("logprob_gap_mean");
  const dropped: Record<string, number> = {};
  for (const { outcome, reason } of run.groups) {
    if (outcome === "dropped") dropped[reason ?? "unknown"] = (dropped[reason ?? "unknown"] ?? 0) + 1;
  }
  return {
    format: 1,
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
    reward: { first: rewards[0] ?? null, last: rewards.at(-1) ?? null },
    logprob_gap: {
      mean: gaps.length > 0 ? gaps.reduce((total, gap) => total + gap, 0) / gaps.length : null,
      max: metric("logprob_gap_max").reduce<number | null>((most, gap) => Math.max(most ?? 0, gap), null),
    },
    tokens_trained: metric("tokens_trained").reduce((total, tokens) => total + tokens, 0),
    groups: {
      trained: run.groups.filter((group) => group.outcome === "trained").length,
      dropped,
      requeued: run.groups.filter((group) => group.requeued).length,
    },
    phases: run.phases,
  };
}

function evalSummary(event: RunState["evals"][number] | undefined): EvalSummary | null {
  if (!event) return null;
  const { accuracy, sampled } = event.metrics;
  return { step: event.step, accuracy: accuracy ?? Number.NaN, sampled: sampled ?? null };
}

/** Reads the run's log and writes `summary.json` and `curve.svg` beside it. */
export function writeSummary(runDirectory: string): { summary: RunSummary; run: RunState } {
  const run = foldRun(readEvents(join(runDirectory, "events.ndjson")));
  const summary = summarize(run);
  replaceFile(join(runDirectory, "summary.json"), `${JSON.stringify(summary, null, 2)}\n`);
  replaceFile(join(runDirectory, "curve.svg"), curveSvg(run));
  return { summary, run };
}
