import type { TimedEvent } from "./events.ts";

type EventOf<T extends TimedEvent["type"]> = Extract<TimedEvent, { type: T }>;

/** A run as its log tells it. What a resume superseded is gone. */
export type RunState = ReturnType<typeof emptyRun>;

export function emptyRun() {
  return {
    runId: "",
    /** The verb that began it. */
    command: "",
    state: "running" as "running" | EventOf<"ended">["state"],
    failure: null as string | null,
    totalSteps: null as number | null,
    step: 0,
    policyVersion: 0,
    /** Seconds that processes of this run were at work, gaps between a death and its resume not counted. */
    seconds: 0,
    /** Of the last event, in seconds since the epoch. */
    time: null as number | null,
    steps: [] as EventOf<"step">[],
    skipped: [] as EventOf<"step_skipped">[],
    evals: [] as EventOf<"eval">[],
    funnels: [] as EventOf<"funnel">[],
    health: [] as EventOf<"health">[],
    /** The newest: a long run has more than a process should keep. `tallies` count all. */
    groups: [] as EventOf<"group">[],
    /** What became of all groups, step by step. */
    tallies: [] as Tally[],
    /** Of the groups' mean rewards. */
    rewards: { least: Number.MAX_VALUE, most: -Number.MAX_VALUE },
    phases: {} as Record<string, number>,
    /** What became of engines, each at the step that the run had come to. */
    engines: [] as (EventOf<"engine"> & { step: number })[],
  };
}

interface Tally {
  step: number;
  trained: number;
  requeued: number;
  /** By reason. */
  dropped: Record<string, number>;
}

/** The one reading of a log. `resumed {fromStep}` supersedes everything that carries a later step. */
export function foldRun(events: Iterable<TimedEvent>): RunState {
  const run = emptyRun();
  for (const event of events) applyEvent(run, event);
  return run;
}

/** Takes the next event in: whoever follows a run folds as they come. */
export function applyEvent(run: RunState, event: TimedEvent): void {
  if (run.time !== null && event.type !== "resumed") run.seconds += event.time - run.time;
  run.time = event.time;
  switch (event.type) {
    case "started":
      run.runId = event.runId;
      run.command = event.command;
      run.totalSteps = event.totalSteps;
      break;
    case "resumed":
      supersede(run, event.fromStep);
      run.totalSteps = event.totalSteps;
      break;
    case "step":
      run.steps.push(event);
      run.step = event.step;
      run.policyVersion = event.policyVersion;
      break;
    case "step_skipped":
      run.skipped.push(event);
      run.step = event.step;
      break;
    case "eval":
      // A run that was resumed right at an eval's step makes it again.
      run.evals = [...run.evals.filter(({ step }) => step !== event.step), event];
      break;
    case "group":
      addGroup(run, event);
      break;
    case "funnel":
      run.funnels.push(event);
      break;
    case "health":
      run.health.push(event);
      break;
    case "engine":
      run.engines.push({ ...event, step: run.step });
      break;
    case "phase":
      if (event.state === "end") run.phases[event.name] = (run.phases[event.name] ?? 0) + (event.seconds ?? 0);
      break;
    case "failed":
      run.failure = event.message;
      break;
    case "ended":
      run.state = event.state;
      break;
    default:
  }
}

const mostGroups = 20_000;

function addGroup(run: RunState, event: EventOf<"group">): void {
  const { step, outcome, reason = "unknown", requeued, reward } = event;
  run.groups.push(event);
  if (run.groups.length > mostGroups) run.groups.splice(0, mostGroups / 2);
  if (run.tallies.at(-1)?.step !== step) run.tallies.push({ step, trained: 0, requeued: 0, dropped: {} });
  const tally = run.tallies.at(-1)!;
  if (outcome === "trained") tally.trained++;
  else tally.dropped[reason] = (tally.dropped[reason] ?? 0) + 1;
  if (requeued) tally.requeued++;
  if (reward === undefined) return;
  run.rewards = { least: Math.min(run.rewards.least, reward), most: Math.max(run.rewards.most, reward) };
}

function supersede(run: RunState, fromStep: number): void {
  const kept = <T extends { step: number }>(items: T[]) => items.filter((item) => item.step <= fromStep);
  run.steps = kept(run.steps);
  run.skipped = kept(run.skipped);
  run.evals = kept(run.evals);
  run.funnels = kept(run.funnels);
  run.health = kept(run.health);
  run.engines = kept(run.engines);
  run.groups = kept(run.groups);
  run.tallies = kept(run.tallies);
  run.step = fromStep;
  run.policyVersion = run.steps.at(-1)?.policyVersion ?? 0;
  run.state = "running";
  run.failure = null;
}
