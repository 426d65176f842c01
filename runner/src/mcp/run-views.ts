/** A run as values, for tools. */
import type { Rollout } from "../agents/types.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { usageError } from "../errors.ts";
import { shorten } from "../lists.ts";
import { pointsOf } from "../telemetry/curve.ts";
import { workerOf } from "../telemetry/find-run.ts";
import type { RunState } from "../telemetry/fold.ts";
import { readRun } from "../telemetry/log.ts";
import { summarize } from "../telemetry/summary.ts";
import { quoted } from "../telemetry/views/lines.ts";
import { runArgument, untrusted } from "./guard.ts";
import type { Answer } from "./tools.ts";

export function runStatus(name: string): Answer {
  const directory = runArgument(name);
  const run = readRun(directory);
  const state = run.state === "running" && workerOf(directory) === null ? "died" : run.state;
  // An agent's error may quote what a model wrote.
  const failure = run.failure && untrusted(run.failure, "why the run failed");
  return [{ ...summarize(run), directory, state, failure }];
}

/** An agent's `info` may name metrics otherwise: anything could be written in those. */
const plainName = /^[\w./-]{1,80}$/;

/** Of each metric at most `most` points, evenly spaced, the last one among them. */
export function seriesOf(run: RunState, names: string[], most: number): Answer {
  const all = metricsOf(run);
  const unknown = names.find((name) => !all.has(name));
  const fix = `take some of ${shorten([...all.keys()], 60)}`;
  if (unknown !== undefined) throw usageError(`the run has no metric '${unknown}'`, { fix });
  const chosen = [...all].filter(([name]) => names.length === 0 || names.includes(name));
  const series = chosen.map(([name, points]) => {
    const sorted = points.map(([, value]) => value).sort((one, other) => one - other);
    const last = points.at(-1)![1];
    const every = Math.ceil(points.length / most);
    const kept = points.filter((_, index) => names.length > 0 && (points.length - 1 - index) % every === 0);
    return { name, steps: points.length, least: sorted[0]!, most: sorted.at(-1)!, last, points: kept };
  });
  return [{ run: run.runId, series }];
}

function metricsOf(run: RunState): Map<string, ReturnType<typeof pointsOf>> {
  const kinds = Object.entries({ "": run.steps, "eval/": run.evals });
  const all = kinds.flatMap(([kind, events]) => {
    const names = new Set(events.flatMap(({ metrics }) => Object.keys(metrics)));
    return [...names].map((name) => [kind + name, pointsOf(events, name)] as const);
  });
  return new Map(all.filter(([name, points]) => plainName.test(name) && points.length > 0));
}

/** A rollout's model calls in order, each with the context that came before it. */
export async function turnsOf({ segments }: Rollout, tokenizer: Pick<Tokenizer, "decode">) {
  const turns = segments.flatMap(({ tokens, turns, versions }, segment) =>
    turns.map(async ({ start, end, stop, source = "" }, turn) => {
      const [context, reply] = await Promise.all([
        tokenizer.decode([...tokens.subarray(turns[turn - 1]?.end ?? 0, start)]),
        tokenizer.decode([...tokens.subarray(start, end)]),
      ]);
      const marked = { context: untrusted(context, "what the model read"), reply: untrusted(reply, "what it wrote") };
      return { segment, turn, ...marked, tokens: end - start, version: versions[start], stop, source: quoted(source) };
    }),
  );
  return Promise.all(turns);
}
