import { type Group, Mask } from "../agents/types.ts";
import { mean } from "../algorithms/advantages/estimator.ts";

/** A row's age: the trainer's version at its training minus that of its oldest trained token. */
export function ageOf(groups: Group[], trainerVersion: number): { staleness_mean: number; staleness_max: number } {
  const ages: number[] = [];
  for (const segment of groups.flatMap((group) => group.rollouts.flatMap((rollout) => rollout.segments))) {
    let oldest = Infinity;
    segment.versions.forEach((version, position) => {
      if (segment.mask[position] === Mask.trained) oldest = Math.min(oldest, version);
    });
    if (oldest !== Infinity) ages.push(trainerVersion - oldest);
  }
  const metrics = { staleness_mean: ages.length > 0 ? mean(ages) : 0, staleness_max: Math.max(0, ...ages) };
  return metrics;
}
