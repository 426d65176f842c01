import type { TimedEvent } from "./events.ts";

type EventOf<T extends TimedEvent["type"]> = Extract<TimedEvent, { type: T }>;

/** A run as its log tells it. What a resume superseded is gone. */
export interface RunState {
  runId: string;
  /** The verb that began it. */
  command: string;
  state: "running" | "completed" | "failed" | "interrupted";
  failure: string | null;
  totalSteps: number | null;
  step: number;
  policyVersion: number;
  /** Seconds that processes of this run were at work, gaps between a death and its resume not counted. */
  seconds: number;
  steps: EventOf<"step">[];
  skipped: EventOf<"step_skipped">[];
  evals: EventOf<"eval">[];
  groups: EventOf<"group">[];
  phases: Record<string, number>;
}

/** The one reading of a log. `resumed {fromStep}` supersedes everything that carries a later step. */
export function foldRun(events: Iterable<TimedEvent>): RunState {
  const run: RunState = {
    runId: "",
    command: "",
    state: "running",
    failure: null,
    totalSteps: null,
    step: 0,
    policyVersion: 0,
    seconds: 0,
    steps: [],
    skipped: [],
    evals: [],
    groups: [],
    phases: {},
  };
  let previous: number | null = null;
  for (const event of events) {
    if (previous !== null && event.type !== "resumed") run.seconds += event.time - previous;
    previous = event.time;
    applyEvent(run, event);
  }
  return run;
}

function applyEvent(run: RunState, event: TimedEvent): void {
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
      run.groups.push(event);
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

function supersede(run: RunState, fromStep: number): void {
  const kept = <T extends { step: number }>(items: T[]) => items.filter((item) => item.step <= fromStep);
  run.steps = kept(run.steps);
  run.skipped = kept(run.skipped);
  run.evals = kept(run.evals);
  run.groups = kept(run.groups);
  run.step = fromStep;
  run.policyVersion = run.steps.at(-1)?.policyVersion ?? 0;
  run.state = "running";
  run.failure = null;
}
