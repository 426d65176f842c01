export interface ScheduleSpec {
  learningRate: number;
  scheduler: "constant" | "linear" | "cosine";
  /** Of `totalUpdates`, rounded up. */
  warmupRatio: number;
  /** Where linear and cosine end, as a fraction of `learningRate`. */
  minLrRatio: number;
  totalUpdates: number;
}

/** Of the update after `done` ones. Warm-up rises linearly from learningRate / warmup. */
export function learningRate(spec: ScheduleSpec, done: number): number {
  const warmup = Math.ceil(spec.totalUpdates * spec.warmupRatio);
  if (done < warmup) return (spec.learningRate * (done + 1)) / warmup;
  const progress = Math.min((done - warmup) / Math.max(spec.totalUpdates - warmup, 1), 1);
  const shape = { constant: 1, linear: 1 - progress, cosine: (1 + Math.cos(Math.PI * progress)) / 2 }[spec.scheduler];
  if (spec.scheduler === "constant") return spec.learningRate;
  return spec.learningRate * (spec.minLrRatio + (1 - spec.minLrRatio) * shape);
}
