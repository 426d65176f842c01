import { type Group, Mask } from "../agents/types.ts";

/**
 * A row's age: the trainer's version at its training minus the version of its oldest trained token. Mean and largest
 * over the rows of a batch.
 */
export function ageOf(groups: Group[], trainerVersion: number): { staleness_mean: number; staleness_max: number } {
  const ages: number[] = [];
  for (const segment of groups.flatMap((group) => group.rollouts.flatMap((rollout) => rollout.segments))) {
    let oldest = Infinity;
    segment.versions.forEach((version, position) => {
      if (segment.mask[position] === Mask.trained) oldest = Math.min(oldest, version);
    });
    if (oldest !== Infinity) ages.push(trainerVersion - oldest);
  }
  if (ages.length === 0) return { staleness_mean: 0, staleness_max: 0 };
  const mean = ages.reduce((total, age) => total + age, 0) / ages.length;
  return { staleness_mean: mean, staleness_max: Math.max(...ages) };
}
