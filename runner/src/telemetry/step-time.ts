import type { GroupRecord } from "./shards.ts";

/** Where the seconds between two steps go. */
export class StepClock {
  private seconds: Record<string, number> = {};
  private startedAt = performance.now();
  private generatingSince = 0;
  private generating = 0;

  /** What the trainer is at or waits for, one part at a time. */
  async measure<T>(part: string, work: Promise<T>): Promise<T> {
    const begunAt = performance.now();
    try {
      return await work;
    } finally {
      this.add(part, begunAt);
    }
  }

  /** Engines and agents are at work while any of these is. */
  async generate<T>(work: Promise<T>): Promise<T> {
    if (this.generating++ === 0) this.generatingSince = performance.now();
    try {
      return await work;
    } finally {
      if (--this.generating === 0) this.add("generate", this.generatingSince);
    }
  }

  /** Seconds since the last call, all of them (`step`) and by part; of rollouts, those of all in a row. */
  take(records: readonly GroupRecord[]): Record<string, number> {
    if (this.generating > 0) this.add("generate", this.generatingSince);
    this.generatingSince = performance.now();
    this.add("step", this.startedAt);
    const { seconds } = this;
    for (const { timings } of records.flatMap(({ group }) => group.rollouts)) {
      seconds.model = (seconds.model ?? 0) + timings.modelSeconds;
      seconds.agent = (seconds.agent ?? 0) + timings.seconds - timings.modelSeconds;
    }
    this.seconds = {};
    this.startedAt = performance.now();
    return seconds;
  }

  private add(part: string, since: number): void {
    this.seconds[part] = (this.seconds[part] ?? 0) + (performance.now() - since) / 1000;
  }
}

/** What more of would make steps shorter. `wait` for rollouts is the engines' or the agents', whoever takes longer. */
export function bindingOf({ wait = 0, train = 0, sync = 0, model = 0, agent = 0, ...others }: Record<string, number>) {
  const parts = { [model < agent ? "agent" : "engine"]: wait, trainer: train, sync, eval: others.eval ?? 0 };
  return Object.entries(parts).reduce((most, part) => (part[1] > most[1] ? part : most))[0];
}
