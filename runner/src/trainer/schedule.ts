export interface ScheduleSpec {
  learningRate: number;
  scheduler: "constant" | "linear" | "cosine";
  /** Share of `totalUpdates` spent warming up; rounded up. */
  warmupRatio: number;
  /** Where linear and cosine end, as a fraction of `learningRate`. */
  minLrRatio: number;
  /** Optimizer updates of the whole run. */
  totalUpdates: number;
}

/** Learning rate of the update after `done` ones. Warm-up rises linearly from learningRate / warmup to learningRate. */
export function learningRate(spec: ScheduleSpec, done: number): number {
  const warmup = Math.ceil(spec.totalUpdates * spec.warmupRatio);
  if (done < warmup) return (spec.learningRate * (done + 1)) / warmup;
  const progress = Math.min((done - warmup) / Math.max(spec.totalUpdates - warmup, 1), 1);
  const shape = { constant: 1, linear: 1 - progress, cosine: (1 + Math.cos(Math.PI * progress)) / 2 }[spec.scheduler];
  if (spec.scheduler === "constant") return spec.learningRate;
  return spec.learningRate * (spec.minLrRatio + (1 - spec.minLrRatio) * shape);
}
