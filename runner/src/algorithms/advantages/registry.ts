import { pick } from "../pick.ts";
import type { AdvantageEstimator } from "./estimator.ts";
import { grpo } from "./grpo.ts";
import { reinforceBaseline } from "./reinforce-baseline.ts";
import { rloo } from "./rloo.ts";

/** `algo.advantage.estimator`. */
export const advantageEstimators: Record<string, AdvantageEstimator> = {
  reinforce_baseline: reinforceBaseline,
  grpo,
  rloo,
};

export function advantageEstimator(name: string): AdvantageEstimator {
  return pick(advantageEstimators, name, "algo.advantage.estimator");
}
