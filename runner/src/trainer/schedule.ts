import type { Recipe } from "../recipe/index.ts";

/** Of a section, the learning rate of the update after `done` ones. Warm-up rises linearly from lr / warmup. */
export function learningRates(
  { adam: { lr }, lr_scheduler: scheduler, lr_warmup_ratio: rising, min_lr_ratio: least }: Recipe["actor" | "critic"],
  totalUpdates: number,
): (done: number) => number {
  const warmup = Math.ceil(totalUpdates * rising);
  return (done) => {
    if (done < warmup) return (lr * (done + 1)) / warmup;
    if (scheduler === "constant") return lr;
    const progress = Math.min((done - warmup) / Math.max(totalUpdates - warmup, 1), 1);
    const shape = scheduler === "linear" ? 1 - progress : (1 + Math.cos(Math.PI * progress)) / 2;
    return lr * (least + (1 - least) * shape);
  };
}
